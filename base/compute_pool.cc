#include "base/compute_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace tokenbutler {
namespace {

// How long a worker waits for the next section of a step before it sleeps, and the caller for the
// last tasks of a section. Serial stretches between sections are a few microseconds.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerClockRead = 32;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// True as soon as done() is; false after kSpin.
template <typename Done>
bool SpinUntil(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// Sleeps unless *word differs from `expected`. May return early; callers re-check.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  static_assert(sizeof(*word) == sizeof(uint32_t));
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace

ComputePool::ComputePool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ComputePool::~ComputePool() {
  stop_.store(true);
  generation_.fetch_add(1);
  FutexWake(&generation_, num_threads());
  for (std::thread& worker : workers_) worker.join();
}

void ComputePool::Run(int num_tasks, TaskFn call, const void* fn) {
  const uint32_t total = static_cast<uint32_t>(num_tasks);
  call_.store(call, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_relaxed);
  num_tasks_.store(total, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(epoch << 32 | total, std::memory_order_release);
  // Sequentially consistent with a worker's num_sleeping_: either we see the sleeper and wake it,
  // or its futex call sees the new generation and does not sleep.
  generation_.fetch_add(1);
  if (num_sleeping_.load() != 0) FutexWake(&generation_, num_tasks - 1);

  RunTasks();

  const auto all_done = [&] { return num_done_.load(std::memory_order_acquire) == total; };
  if (SpinUntil(all_done)) return;
  caller_sleeps_.store(1);
  for (;;) {
    const uint32_t done = num_done_.load();
    if (done == total) break;
    FutexWait(&num_done_, done);
  }
  caller_sleeps_.store(0);
}

void ComputePool::RunTasks() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket) != 0) {
    const TaskFn call = call_.load(std::memory_order_relaxed);
    const void* fn = fn_.load(std::memory_order_relaxed);
    const uint32_t total = num_tasks_.load(std::memory_order_relaxed);
    const uint32_t unclaimed = static_cast<uint32_t>(ticket);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    call(fn, static_cast<int>(total - unclaimed));
    // After the last increment the caller may return and publish the next job.
    const uint32_t done = num_done_.fetch_add(1) + 1;
    if (done == total && caller_sleeps_.load() != 0) FutexWake(&num_done_, 1);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ComputePool::WorkerLoop() {
  for (;;) {
    const uint32_t seen = generation_.load();
    if (stop_.load()) return;
    RunTasks();
    const auto published = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (num_steps_.load(std::memory_order_relaxed) > 0 && SpinUntil(published)) continue;
    num_sleeping_.fetch_add(1);
    FutexWait(&generation_, seen);
    num_sleeping_.fetch_sub(1);
  }
}

}  // namespace tokenbutler
