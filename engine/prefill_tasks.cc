#include "engine/prefill_tasks.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <mutex>

namespace tokenbutler {
namespace {

// LibTorch as each task uses it: on the thread that calls it, without autograd.
class LibTorchScope {
 public:
  LibTorchScope() {
    thread_local const bool is_alone = [] {
      at::set_num_threads(1);
      return true;
    }();
    (void)is_alone;
  }

 private:
  c10::InferenceMode inference_;
};

}  // namespace

void RunLibTorchTasks(ComputePool& pool, int num_tasks, absl::FunctionRef<void(int task)> fn) {
  std::exception_ptr error;
  std::once_flag is_first;
  pool.ParallelFor(num_tasks, [&](int task) {
    try {
      const LibTorchScope scope;
      fn(task);
    } catch (...) {
      std::call_once(is_first, [&] { error = std::current_exception(); });
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace tokenbutler
