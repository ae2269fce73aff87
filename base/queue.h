#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace tokenbutler {

// A bounded first-in, first-out queue between threads: any number of producers and consumers.
// Closing it refuses new items and wakes every waiter; what is queued can still be taken. Allocates
// only when more items wait than ever did. T has a default value.
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
    if (num_items_ >= capacity_) return PushResult::kFull;
    Append(std::move(item));
    return PushResult::kOk;
  }

  // Waits up to `timeout` for room; kFull when none came.
  PushResult Push(T&& item, absl::Duration timeout) {
    MutexLock lock(&mutex_);
    Waiter waiter(timeout);
    while (!closed_ && num_items_ >= capacity_) {
      if (!waiter.Wait(&not_full_, &mutex_)) return PushResult::kFull;
    }
    if (closed_) return PushResult::kClosed;
    Append(std::move(item));
    return PushResult::kOk;
  }

  // Waits up to `timeout` for an item. Empty when none came, or when the queue is closed and
  // drained: closed() tells which.
  std::optional<T> Pop(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    Waiter waiter(timeout);
    while (num_items_ == 0 && !closed_) {
      if (!waiter.Wait(&not_empty_, &mutex_)) return std::nullopt;
    }
    if (num_items_ == 0) return std::nullopt;
    std::optional<T> item(std::exchange(ring_[first_], T()));
    first_ = (first_ + 1) % ring_.size();
    --num_items_;
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
    return num_items_;
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

  void Append(T&& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (num_items_ == ring_.size()) Grow();
    ring_[(first_ + num_items_++) % ring_.size()] = std::move(item);
    not_empty_.Signal();
  }
  void Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<T> larger(std::min(capacity_, std::max<size_t>(4, 2 * ring_.size())));
    for (size_t i = 0; i < num_items_; ++i) {
      larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
    }
    ring_ = std::move(larger);
    first_ = 0;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_empty_, not_full_;
  std::vector<T> ring_ ABSL_GUARDED_BY(mutex_);
  size_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // the oldest item's place
  size_t num_items_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tokenbutler
