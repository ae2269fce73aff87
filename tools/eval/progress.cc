#include "tools/eval/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "fmt/format.h"

namespace tokenbutler {

std::string ClockTime(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  if (seconds < 3600) return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

Progress::Progress(std::string name, const Clock& clock,
                   std::function<void(const std::string&)> print)
    : name_(std::move(name)), clock_(&clock), print_(std::move(print)), start_(clock.Now()) {}

Progress Progress::OnStderr(std::string name) {
  static const RealClock kClock;
  return {std::move(name), kClock, [](const std::string& line) {
            fmt::print(stderr, "\r{:<79}", line);
            std::fflush(stderr);
          }};
}

void Progress::Begin(std::string what) {
  what_ = std::move(what);
  Advance(0);
}

void Progress::Advance(double units) {
  done_ += units;
  const absl::Time now = clock_->Now();
  if (now - printed_ < absl::Seconds(1)) return;
  printed_ = now;
  print_(Line());
}

void Progress::End() { print_(Line() + "\n"); }

std::string Progress::Line() const {
  const absl::Duration elapsed = clock_->Now() - start_;
  const double share = total_ > 0 ? std::min(1.0, done_ / total_) : 1;
  std::string line =
      fmt::format("{}: {}: {:.0f} %, {} so far", name_, what_, 100 * share, ClockTime(elapsed));
  if (share > 0 && share < 1) {
    line += fmt::format(", {} left", ClockTime(elapsed * ((1 - share) / share)));
  }
  return line;
}

}  // namespace tokenbutler
