#pragma once

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"
#include "tools/eval/tasks/word_pools.h"

namespace tokenbutler {

// RULER's cwe (arXiv 2404.06654, section 3.3): a numbered list in which ten words stand 30 times
// and all others three times (6 and 1 below 4096 tokens), behind one solved example. Asked for are
// the ten.
absl::StatusOr<TaskSample> MakeCommonWordsSample(const TaskSample& sample, const WordPools& words,
                                                 const PromptFormat& format);

// RULER's fwe: words of six random letters whose frequencies follow a zeta distribution with
// exponent 2, the most frequent one written as dots. Asked for are the next three.
absl::StatusOr<TaskSample> MakeFrequentWordsSample(const TaskSample& sample,
                                                   const PromptFormat& format);

}  // namespace tokenbutler
