#include "base/clock.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace tokenbutler {
namespace {

TEST(ClockTest, RealClockStartsAtTheWallClockAndNeverRunsBackwards) {
  const absl::Time before = absl::Now();
  RealClock clock;
  absl::Time last = clock.Now();
  EXPECT_GE(last, before - absl::Milliseconds(1));
  EXPECT_LE(last, absl::Now() + absl::Milliseconds(1));
  for (int i = 0; i < 10000; ++i) {
    const absl::Time now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, FakeClockMovesOnlyWhenTold) {
  FakeClock clock(absl::FromUnixSeconds(5));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(5));
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(5) + absl::Milliseconds(1500));
}

}  // namespace
}  // namespace tokenbutler
