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

uint64_t PackRange(uint32_t begin, uint32_t end) { return uint64_t{begin} << 32 | end; }

// Takes the first task of a range, or the last. False: there is none.
//
// A claim can only succeed while the range is of the current job, whenever its value was read: one
// without tasks is never claimed from, and one that still has some is not written but by claims.
bool Claim(std::atomic<uint64_t>* range, bool first, uint32_t* task) {
  uint64_t left = range->load(std::memory_order_relaxed);
  for (;;) {
    const auto begin = static_cast<uint32_t>(left >> 32), end = static_cast<uint32_t>(left);
    if (begin >= end) return false;
    *task = first ? begin : end - 1;
    const uint64_t rest = first ? PackRange(begin + 1, end) : PackRange(begin, end - 1);
    // Acquires the job, which was released with the range.
    if (range->compare_exchange_weak(left, rest, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
}

}  // namespace

ComputePool::ComputePool(int num_threads) : shares_(static_cast<size_t>(num_threads)) {
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
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
  num_done_.store(0, std::memory_order_relaxed);
  const auto num_shares = static_cast<uint32_t>(shares_.size());
  const uint32_t each = total / num_shares, rest = total % num_shares;
  uint32_t begin = 0;
  for (uint32_t i = 0; i < num_shares; ++i) {
    const uint32_t end = begin + each + (i < rest ? 1 : 0);
    shares_[i].range.store(PackRange(begin, end), std::memory_order_release);
    begin = end;
  }
  // Sequentially consistent with a worker's num_sleeping_: either we see the sleeper and wake it,
  // or its futex call sees the new generation and does not sleep.
  generation_.fetch_add(1);
  if (num_sleeping_.load() != 0) FutexWake(&generation_, num_tasks - 1);

  RunTasks(0);

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

void ComputePool::RunTasks(int self) {
  uint32_t num_run = 0, task = 0;
  // The job is looked at anew for each task: of a claim's, which nothing changes before it is
  // counted.
  const auto run = [&] {
    call_.load(std::memory_order_relaxed)(fn_.load(std::memory_order_relaxed),
                                          static_cast<int>(task));
    ++num_run;
  };
  while (Claim(&shares_[self].range, /*first=*/true, &task)) run();
  const int num_shares = num_threads();
  for (int i = 1; i < num_shares; ++i) {
    std::atomic<uint64_t>& others = shares_[(self + i) % num_shares].range;
    while (Claim(&others, /*first=*/false, &task)) run();
  }
  if (num_run == 0) return;
  // After the last thread has counted, the caller may return and publish the next job.
  num_done_.fetch_add(num_run);
  if (caller_sleeps_.load() != 0) FutexWake(&num_done_, 1);
}

void ComputePool::WorkerLoop(int self) {
  for (;;) {
    const uint32_t seen = generation_.load();
    if (stop_.load()) return;
    RunTasks(self);
    const auto published = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (num_steps_.load(std::memory_order_relaxed) > 0 && SpinUntil(published)) continue;
    num_sleeping_.fetch_add(1);
    FutexWait(&generation_, seen);
    num_sleeping_.fetch_sub(1);
  }
}

}  // namespace tokenbutler
