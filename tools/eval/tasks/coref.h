#pragma once

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// Synthetic co-reference, as in TokenButler (arXiv 2503.07518): an invented name of at least three
// tokens is introduced once, after 10 to 50 % of unrelated prose, so that it is in no local window
// of a third of the context; the question at the end is a sentence that only this name completes.
// What a selection must find is few tokens far back that nothing repeats: evidence is the name,
// forced_answer a space and the name.
//
// One sample: `sample` says context_len (300 tokens as in the paper, or more), index and seed.
// INVALID_ARGUMENT when the length is too small.
absl::StatusOr<TaskSample> MakeCorefSample(const TaskSample& sample, const PromptFormat& format);

}  // namespace tokenbutler
