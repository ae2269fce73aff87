#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/prose.h"
#include "tools/eval/tasks/task_sample.h"
#include "tools/eval/tasks/word_pools.h"

namespace tokenbutler {

// RULER's needle tasks (arXiv 2404.06654, section 3.1): sentences of the form "One of the special
// magic numbers for KEY is: VALUE." hidden in a haystack, and a question about some of the keys.
struct NeedleTask {
  enum class Haystack {
    kNoise,    // five sentences about grass and sky, again and again, one repeat a line
    kEssay,    // running text; needles between its sentences at 40 evenly spaced depths
    kNeedles,  // other needles, one a line
  };
  // Of keys and values: "adjective-noun", seven digits, or a random UUID.
  enum class Text { kWords, kNumbers, kUuids };

  Haystack haystack = Haystack::kEssay;
  Text keys = Text::kWords, values = Text::kNumbers;
  int num_keys = 1;
  int num_values = 1;   // of each key
  int num_queries = 1;  // keys asked for; at least so many keys
};

// One sample, its length fitted: `sample` says task, length, index and seed. `prose` is used by
// kEssay only. INVALID_ARGUMENT when the length is too small for the needles.
absl::StatusOr<TaskSample> MakeNeedleSample(const NeedleTask& task, const TaskSample& sample,
                                            const WordPools& words, const Prose& prose,
                                            const PromptFormat& format);

}  // namespace tokenbutler
