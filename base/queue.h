#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace tokenbutler {

// A bounded first-in, first-out queue between threads: any number of producers and consumers.
// Closing it refuses new items and wakes every waiter; what is queued can still be taken.
template <typename T>
class BoundedQueue {
 public:
  enum class PushResult { kOk, kFull, kClosed };

  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Never waits. `item` is moved from only when the result is kOk.
  PushResult TryPush(T&& item) {
    MutexLock lock(&mutex_);
    if (closed_) return PushResult::kClosed;
    if (items_.size() >= capacity_) return PushResult::kFull;
    items_.push_back(std::move(item));
    not_empty_.Signal();
    return PushResult::kOk;
  }

  // Waits up to `timeout` for room; kFull when none came.
  PushResult Push(T&& item, absl::Duration timeout) {
    MutexLock lock(&mutex_);
    Waiter waiter(timeout);
    while (!closed_ && items_.size() >= capacity_) {
      if (!waiter.Wait(&not_full_, &mutex_)) return PushResult::kFull;
    }
    if (closed_) return PushResult::kClosed;
    items_.push_back(std::move(item));
    not_empty_.Signal();
    return PushResult::kOk;
  }

  // Waits up to `timeout` for an item. Empty when none came, or when the queue is closed and
  // drained: closed() tells which.
  std::optional<T> Pop(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    Waiter waiter(timeout);
    while (items_.empty() && !closed_) {
      if (!waiter.Wait(&not_empty_, &mutex_)) return std::nullopt;
    }
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    not_full_.Signal();
    return item;
  }

  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
    not_empty_.SignalAll();
    not_full_.SignalAll();
  }

  bool closed() const {
    MutexLock lock(&mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(&mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  // Shares one time limit between the wake-ups of a wait.
  class Waiter {
   public:
    explicit Waiter(absl::Duration timeout)
        : limit_(timeout == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                     : absl::Now() + timeout) {}
    // False when the time is up.
    bool Wait(CondVar* condition, Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      const absl::Duration left = limit_ - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      condition->WaitWithTimeout(mutex, left);
      return true;
    }

   private:
    const absl::Time limit_;
  };

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_empty_, not_full_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tokenbutler
