#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/selection/attention_params.h"

namespace tokenbutler {

// What a measurement gives every setting: numbers of tokens, which depend on the context and not on
// the way of choosing.
struct TokenCounts {
  int context_len = 0;
  int token_budget = 4096;
  int sink_tokens = 128;
  int local_window = 512;
};

// A way of choosing tokens that is measured: a policy and its options without the numbers that
// depend on the context, so that its quality at one context and its speed at another belong
// together. Written as
//   NAME[:OPTION=VALUE[,OPTION=VALUE...]]
// NAME: a policy, or a setting that requests can name (AttentionSetting). Options: interval,
// candidates (a number of tokens, a multiple of the budget: 2x, or a share of the context: 1/8),
// scan (share of the blocks: 1/4), query, keys, neighbours, top_p, dense_first_layer (0, 1),
// misses, sink, local (tokens instead of the measurement's).
struct Setting {
  std::string label;  // as written
  AttentionParams params;
  // What the name of an AttentionSetting stands for, which versions of the program may change:
  // "sketch:keys=bits2,scan=1,interval=1"; "": the label says it itself.
  std::string meaning;
  double candidates_share = 0;    // of the context; 0: params.candidates is the number,
  double candidates_budgets = 0;  // or this multiple of the budget unless it is 0
  std::optional<int> sink_tokens, local_window;

  AttentionParams At(const TokenCounts& counts) const;
};

// INVALID_ARGUMENT naming the option and what it may be.
absl::StatusOr<Setting> ParseSetting(std::string_view text);

// Values to try; empty: the settings' own.
struct Sweep {
  std::vector<std::string> intervals = {}, candidates = {}, scan_fractions = {}, neighbours = {};
};

// Parses `texts`; each that names a policy that scans is repeated with every combination of the
// sweep's values for the options that it does not set itself. None twice.
absl::StatusOr<std::vector<Setting>> ParseSettings(const std::vector<std::string>& texts,
                                                   const Sweep& sweep);

// Which ways of choosing tokens a program compares, and how many tokens each may attend to.
struct SettingOptions {
  std::vector<std::string> settings = {};
  Sweep sweep = {};
  std::vector<int> token_budgets = {};
  int sink_tokens = 128;
  int local_window = 512;
  std::string predictor = {};  // file for the policy tokenbutler; "": none
  // Rows of an earlier run that are not measured again, and where rows go; "": none.
  std::string resume = {};
};

// A number of tokens, or a share of the context: "512", "1/8". INVALID_ARGUMENT unless it is at
// least 1 token and at most the context.
absl::StatusOr<int> ParseBudget(std::string_view text, int context_len);

// Everything there is: dense, the named settings, each policy as its name alone.
std::vector<std::string> AllSettings();

}  // namespace tokenbutler
