#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// A problem of the American Invitational Mathematics Examination; its answer is an integer from 0
// to 999.
struct AimeProblem {
  std::string id;  // the file's, or the entry's number
  std::string text;
  std::string answer;
};

// A local copy of AIME 2024 or 2025 as JSON lines or a JSON list: `problem` or `question`, `answer`
// (number or text) and perhaps `id`, letters' case ignored. INVALID_ARGUMENT naming the entry.
absl::StatusOr<std::vector<AimeProblem>> ReadAime(const std::string& path);

struct AimeOptions {
  int num_answers = 8;     // drawn per problem; pass@1 is the share of right ones
  int max_tokens = 32768;  // of an answer
  uint64_t seed = 0;
};

// One problem: the model is asked to reason step by step and to box its answer, which is sampled at
// temperature 0.6 and top-p 0.95 as DeepSeek-R1 does (arXiv 2501.12948, section 3). `index` is the
// problem's place in its file, `task` names the file: "aime24".
TaskSample MakeAimeSample(const std::string& task, const AimeProblem& problem, int index,
                          const AimeOptions& options);

}  // namespace tokenbutler
