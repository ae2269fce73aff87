#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/benchmarks.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/settings.h"

namespace tokenbutler {

// Settings, budgets and depths that are combined with each other: what one plot shows.
struct DecodeSweep {
  std::string name;  // of what is varied: a column of the rows
  std::vector<std::string> settings;
  std::vector<int> token_budgets;
  std::vector<int> depths;
};

// What docs/performance.md shows: dense and the settings at every depth, every policy at
// options.policy_depths, and at the last of these intervals, budgets and candidates.
std::vector<DecodeSweep> PageSweeps(const DecodeOptions& options);

// One row of the table to be.
struct DecodeCase {
  Setting setting;
  AttentionParams params;
  int depth = 0;

  // Of its row in a checkpoint.
  Checkpoint::Json Key() const;
  // Steps of a repeat: whole intervals.
  int StepsPerRepeat(int at_least) const;
  // Steps in all: a warm-up, the cold ones, the ones back to back.
  int NumSteps(const DecodeOptions& options) const;
};

// The cases of all sweeps, each once, shallow ones first.
absl::StatusOr<std::vector<DecodeCase>> DecodeCasesOf(const std::vector<DecodeSweep>& sweeps,
                                                      const DecodeOptions& options);

}  // namespace tokenbutler
