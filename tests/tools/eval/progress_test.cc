#include "tools/eval/progress.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

TEST(ProgressTest, SaysHowLongTheRestTakes) {
  FakeClock clock;
  std::vector<std::string> lines;
  Progress progress("kl", clock, [&](const std::string& line) { lines.push_back(line); });
  progress.AddWork(100);
  progress.Begin("licences");
  clock.Advance(absl::Seconds(30));
  progress.Advance(25);
  clock.Advance(absl::Milliseconds(200));
  progress.Advance(1);  // too soon to say anything
  clock.Advance(absl::Seconds(30) - absl::Milliseconds(200));
  progress.Advance(24);
  progress.AddWork(100);
  EXPECT_EQ(progress.Line(), "kl: licences: 25 %, 1:00 so far, 3:00 left");
  clock.Advance(absl::Hours(1));
  progress.Advance(150);
  progress.End();
  EXPECT_THAT(
      lines,
      ElementsAre("kl: licences: 0 %, 0:00 so far", "kl: licences: 25 %, 0:30 so far, 1:30 left",
                  "kl: licences: 50 %, 1:00 so far, 1:00 left",
                  "kl: licences: 100 %, 1:01:00 so far", "kl: licences: 100 %, 1:01:00 so far\n"));
}

TEST(ProgressTest, NothingToDoIsAllDone) {
  FakeClock clock;
  const Progress progress("kl", clock, [](const std::string&) {});
  EXPECT_EQ(progress.Line(), "kl: : 100 %, 0:00 so far");
}

}  // namespace
}  // namespace tokenbutler
