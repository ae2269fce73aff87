#include "bench/decode_cases.h"

#include <algorithm>

namespace tokenbutler {

std::vector<DecodeSweep> PageSweeps(const DecodeOptions& options) {
  const std::vector<int>& budgets = options.choice.token_budgets;
  const std::vector<int> deepest = {options.policy_depths.back()};
  std::vector<std::string> candidates;
  for (const int budgets_kept : {1, 2, 4, 8}) {
    candidates.push_back(fmt::format("sketch:interval=4,candidates={}x", budgets_kept));
  }
  // Between two scans: candidates ranked anew, or the best blocks scanned.
  std::vector<std::string> intervals = {"sketch:candidates=2x", "sketch:keys=bits1"};
  for (const int interval : {2, 4, 8, 16}) {
    intervals.push_back(fmt::format("sketch:interval={},candidates=2x", interval));
    intervals.push_back(fmt::format("sketch:keys=bits1,scan=1/4,interval={}", interval));
  }
  return {{"depth", {"dense", "quality", "fast"}, budgets, options.depths},
          {"policy", AllSettings(), budgets, options.policy_depths},
          {"interval", intervals, budgets, deepest},
          {"token_budget", {"quality", "fast"}, {1024, 2048, 4096, 8192, 16384}, deepest},
          {"candidates", candidates, budgets, deepest}};
}

Checkpoint::Json DecodeCase::Key() const {
  Checkpoint::Json key = {{"depth", depth}, {"setting", setting.label}};
  if (params.sparse()) {
    key["token_budget"] = params.token_budget;
    // What a named setting stands for may change.
    key["interval"] = params.prediction_interval;
    key["scan_fraction"] = params.scan_fraction;
  }
  return key;
}

int DecodeCase::StepsPerRepeat(int at_least) const {
  const int interval = params.prediction_interval;
  return (at_least + interval - 1) / interval * interval;
}

int DecodeCase::NumSteps(const DecodeOptions& options) const {
  return StepsPerRepeat(options.steps) * (options.repeats + 2) + params.prediction_interval;
}

absl::StatusOr<std::vector<DecodeCase>> DecodeCasesOf(const std::vector<DecodeSweep>& sweeps,
                                                      const DecodeOptions& options) {
  std::vector<DecodeCase> cases;
  for (const DecodeSweep& sweep : sweeps) {
    ASSIGN_OR_RETURN(const std::vector<Setting> settings,
                     ParseSettings(sweep.settings, options.choice.sweep));
    for (const int depth : sweep.depths) {
      for (const int token_budget : sweep.token_budgets) {
        for (const Setting& setting : settings) {
          const DecodeCase one = {setting,
                                  setting.At({.context_len = depth,
                                              .token_budget = token_budget,
                                              .sink_tokens = options.choice.sink_tokens,
                                              .local_window = options.choice.local_window}),
                                  depth};
          // Dense rows do not depend on the budget, and have no key for it.
          const bool is_new = std::none_of(cases.begin(), cases.end(), [&](const DecodeCase& c) {
            return c.Key() == one.Key();
          });
          if (is_new) cases.push_back(one);
        }
      }
    }
  }
  std::stable_sort(cases.begin(), cases.end(),
                   [](const DecodeCase& a, const DecodeCase& b) { return a.depth < b.depth; });
  return cases;
}

}  // namespace tokenbutler
