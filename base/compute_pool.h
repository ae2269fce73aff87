#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tokenbutler {

// The threads that run our CPU kernels: the caller and num_threads - 1 workers. Work is a number
// of independent tasks, and each thread begins with consecutive ones of its own, in ascending
// order: what it reads and writes is together, and no other thread's cache line stands in its way.
// Who has none left takes others' last ones, so a worker that wakes late or is descheduled delays
// nobody but the task it holds. Kernels must give the same bits whichever thread runs a task.
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

  int num_threads() const { return static_cast<int>(shares_.size()); }

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

  // The tasks that are left of one thread's: those in [upper half, lower half) of `range`.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
  };

  void Run(int num_tasks, TaskFn call, const void* fn);
  // Claims and runs tasks, those of shares_[self] first, until none is left to claim.
  void RunTasks(int self);
  void WorkerLoop(int self);

  // What each thread writes at other times has a cache line of its own: where threads are cores
  // with different caches, each line that goes to and fro costs hundreds of nanoseconds.

  // The caller's: the current job. It is written before the shares are, and only changes once all
  // tasks are done: whoever has claimed a task and not yet counted it in num_done_ may read it.
  alignas(64) std::atomic<TaskFn> call_{nullptr};
  std::atomic<const void*> fn_{nullptr};
  // Counts published jobs; what workers sleep on.
  std::atomic<uint32_t> generation_{0};
  std::atomic<int> num_steps_{0};  // live StepScopes
  std::atomic<bool> stop_{false};
  std::vector<Share> shares_;  // [num_threads()]; the caller's is first
  // Each thread counts its tasks once, when it finds no more to claim.
  alignas(64) std::atomic<uint32_t> num_done_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> num_sleeping_{0};
  std::vector<std::thread> workers_;
};

}  // namespace tokenbutler
