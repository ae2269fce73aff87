#include "base/clock.h"

#include "absl/time/clock.h"

namespace tokenbutler {

RealClock::RealClock() : start_(absl::Now()), steady_start_(std::chrono::steady_clock::now()) {}

absl::Time RealClock::Now() const {
  return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
}

}  // namespace tokenbutler
