#pragma once

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace tokenbutler {

// A clock that stands still until a test moves it. Thread-safe.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000)) : now_(start) {}

  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    MutexLock lock(&mutex_);
    now_ += by;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tokenbutler
