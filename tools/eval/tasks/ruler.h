#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/prose.h"
#include "tools/eval/tasks/ruler_questions.h"
#include "tools/eval/tasks/task_sample.h"
#include "tools/eval/tasks/word_pools.h"

namespace tokenbutler {

// The 13 tasks of RULER (Hsieh et al., arXiv 2404.06654, tables 2 and 5), written from the paper
// and the benchmark's documented formats, with its prompts, answer prefixes, numbers of tokens to
// generate and metrics. What differs: random draws, the built-in word lists unless others are
// given, and essay tasks run over the text that is given or generated prose.
const std::vector<std::string>& RulerTaskNames();

// What the tasks take from files.
struct RulerSources {
  WordPools words;
  Prose prose;                        // of the essay tasks
  std::optional<QuestionSet> squad;   // qa_1
  std::optional<QuestionSet> hotpot;  // qa_2
};

// The tasks that can be run with `sources`.
std::vector<std::string> AvailableRulerTasks(const RulerSources& sources);

// Whether a task hides its needles in RulerSources::prose.
bool UsesProse(const std::string& ruler_task);

// One sample: `sample` says task, context_len, index and seed. INVALID_ARGUMENT for an unknown
// task, a length too small for it, or a task whose source is missing.
absl::StatusOr<TaskSample> MakeRulerSample(const TaskSample& sample, const RulerSources& sources,
                                           const PromptFormat& format);

}  // namespace tokenbutler
