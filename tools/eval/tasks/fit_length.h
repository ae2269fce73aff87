#pragma once

#include <functional>

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// The sample with as much filler as its length allows: make(n) has `n` units of it (sentences,
// words, documents) and is longer for a larger n, up to chance. The largest n found, at least
// `min_units`, whose prompt and max_tokens together have at most sample.context_len tokens, as
// RULER does; every n gives a sample that fits. INVALID_ARGUMENT when even `min_units` do not;
// errors of `format`.
absl::StatusOr<TaskSample> FitLength(const PromptFormat& format, int min_units,
                                     const std::function<TaskSample(int num_units)>& make);

}  // namespace tokenbutler
