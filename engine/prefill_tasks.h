#pragma once

#include "absl/functional/function_ref.h"
#include "base/compute_pool.h"

namespace tokenbutler {

// Calls fn(task) for each task in [0, num_tasks) on the pool, where it may use LibTorch (with one
// thread, without autograd) and throw. Rethrows the first exception once all tasks are done.
void RunLibTorchTasks(ComputePool& pool, int num_tasks, absl::FunctionRef<void(int task)> fn);

}  // namespace tokenbutler
