#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

namespace tokenbutler {

// How far a long run is, on one line that is written over: what is at work, the share that is done,
// and about how long the rest takes. Any one thread at a time.
class Progress {
 public:
  // `name` begins each line. Prints by `print`, at most once a second.
  Progress(std::string name, const Clock& clock, std::function<void(const std::string&)> print);
  // To stderr.
  static Progress OnStderr(std::string name);

  // Work of this run, in units that take about as long as each other; more may be added later.
  void AddWork(double units) { total_ += units; }
  // What is at work from now on.
  void Begin(std::string what);
  // That much of it has been done since Begin, or since the call before.
  void Advance(double units);
  // Prints a last line.
  void End();

  // "kl: licences: 42 %, 0:10 so far, 0:14 left".
  std::string Line() const;

 private:
  std::string name_;
  const Clock* clock_;
  std::function<void(const std::string&)> print_;
  absl::Time start_, printed_ = absl::InfinitePast();
  std::string what_;
  double total_ = 0, done_ = 0;
};

// "1:02:03", "2:03".
std::string ClockTime(absl::Duration duration);

}  // namespace tokenbutler
