#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace tokenbutler {

// Where the time comes from, so that tests decide what time it is (tests/testing/fake_clock.h).
// Thread-safe. Time never runs backwards.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// The wall clock's time at construction, carried on by the steady clock: differences are true
// durations whatever NTP does to the wall clock meanwhile.
class RealClock : public Clock {
 public:
  RealClock();
  absl::Time Now() const override;

 private:
  const absl::Time start_;
  const std::chrono::steady_clock::time_point steady_start_;
};

}  // namespace tokenbutler
