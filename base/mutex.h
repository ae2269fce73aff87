#pragma once

// One mutex for the whole code base: absl::Mutex with its thread annotations. Debian's absl is not
// built for ThreadSanitizer, under which even a correct absl::MutexLock program reports a race, so
// TSan builds use std::mutex behind the same names.

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#define TOKENBUTLER_STD_MUTEX 0
#if defined(__SANITIZE_THREAD__)  // gcc
#undef TOKENBUTLER_STD_MUTEX
#define TOKENBUTLER_STD_MUTEX 1
#elif defined(__has_feature)  // clang
#if __has_feature(thread_sanitizer)
#undef TOKENBUTLER_STD_MUTEX
#define TOKENBUTLER_STD_MUTEX 1
#endif
#endif

#if TOKENBUTLER_STD_MUTEX
#include <algorithm>
#include <condition_variable>
#include <mutex>
#else
#include "absl/synchronization/mutex.h"
#endif

namespace tokenbutler {

#if TOKENBUTLER_STD_MUTEX

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mutex_;
};

class CondVar {
 public:
  void Wait(Mutex* mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // True when the timeout passed.
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    // Bounded, for now() + infinity overflows in the standard library.
    const absl::Duration bounded = std::min(timeout, absl::Hours(24 * 365));
    const bool timed_out =
        condition_.wait_for(lock, absl::ToChronoNanoseconds(bounded)) == std::cv_status::timeout;
    lock.release();
    return timed_out;
  }
  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

#else

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using CondVar = absl::CondVar;

#endif

}  // namespace tokenbutler
