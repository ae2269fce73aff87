#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "tools/train/trainer.h"

namespace tokenbutler {

// "45 s", "12 min 05 s", "3 h 07 min", "2 d 04 h".
std::string DurationText(double seconds);

// What is printed of a run as it goes on: on a terminal one line that is written over, elsewhere a
// line now and then; a line for every validation. Times of steps are those since this was made.
class ProgressLines {
 public:
  ProgressLines(int64_t num_steps, int64_t steps_done, bool is_terminal);

  // The characters to print for an event at `now`; often none when this is no terminal.
  std::string For(const TrainingEvent& event, absl::Time now);

 private:
  // Of the steps that are left; "" before the first one.
  std::string Eta(int64_t step, absl::Time now) const;

  const int64_t num_steps_, first_step_;
  const bool is_terminal_;
  absl::Time started_ = absl::InfinitePast();  // the first step
  absl::Time printed_ = absl::InfinitePast();  // the last line of a step
  double first_validation_ = 0;                // loss; 0: none seen
};

// What --dry-run prints.
std::string EstimateText(const TrainingEstimate& estimate);

// The last words of a run.
std::string ResultText(const TrainingResult& result, const std::string& output);

}  // namespace tokenbutler
