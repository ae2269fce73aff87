#pragma once

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// RULER's vt (arXiv 2404.06654, section 3.2): a chain of five assignments ("VAR B = VAR A") hidden
// in order in its noise, behind one solved example of at most 500 tokens (or as short as it can
// be). Asked for are all variables that have the first one's value.
absl::StatusOr<TaskSample> MakeVariableSample(const TaskSample& sample, const PromptFormat& format);

}  // namespace tokenbutler
