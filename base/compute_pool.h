#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tokenbutler {

// The threads that run our CPU kernels: the caller and num_threads - 1 workers. Work is a number
// of independent tasks; whoever is free claims the next one, so a worker that wakes late or is
// descheduled delays nobody but the task it holds. Kernels must give the same bits whichever
// thread runs a task.
//
// One thread at a time may call ParallelFor (the engine thread); tasks must not call it again.
// Nothing is allocated per call. Idle workers sleep on a futex; inside a StepScope they first spin
// for a bounded time, because a step is hundreds of short parallel sections
// (docs/adr/0005-compute-pool.md).
class ComputePool {
 public:
  // `num_threads` >= 1 counts the caller. Starts num_threads - 1 workers.
  explicit ComputePool(int num_threads);
  ~ComputePool();  // joins the workers. REQUIRES: no ParallelFor is running.
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(task) once for each task in [0, num_tasks), on the caller and the workers, and returns
  // when all calls have returned; what they wrote is then visible to the caller. `fn` is any
  // callable of one int that does not throw.
  template <typename Fn>
  void ParallelFor(int num_tasks, const Fn& fn) {
    if (num_tasks <= 1 || workers_.empty()) {
      for (int task = 0; task < num_tasks; ++task) fn(task);
      return;
    }
    Run(
        num_tasks, [](const void* f, int task) { (*static_cast<const Fn*>(f))(task); }, &fn);
  }

  // While one of these lives, workers wait for the next ParallelFor by spinning for a bounded time
  // before they sleep. For the thread that calls ParallelFor, around one step or a few; may nest.
  class StepScope {
   public:
    explicit StepScope(ComputePool& pool) : pool_(pool) {
      pool_.num_steps_.fetch_add(1, std::memory_order_relaxed);
    }
    ~StepScope() { pool_.num_steps_.fetch_sub(1, std::memory_order_relaxed); }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    ComputePool& pool_;
  };

 private:
  using TaskFn = void (*)(const void* fn, int task);

  void Run(int num_tasks, TaskFn call, const void* fn);
  // Claims and runs tasks until none is left to claim.
  void RunTasks();
  void WorkerLoop();

  // The job of the current epoch. Written by the caller before `ticket_` is published; they only
  // change once every task of the epoch is done, so a successful claim proves they were stable.
  std::atomic<TaskFn> call_{nullptr};
  std::atomic<const void*> fn_{nullptr};
  std::atomic<uint32_t> num_tasks_{0};
  // Upper half: epoch. Lower half: tasks not yet claimed.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  // Counts published jobs; what workers sleep on.
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> num_sleeping_{0};
  std::atomic<int> num_steps_{0};  // live StepScopes
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace tokenbutler
