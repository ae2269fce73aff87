#include "engine/selection/attention_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/status_details.h"

namespace tokenbutler {
namespace {

constexpr std::array<AttentionPolicy, 11> kAllPolicies = {
    AttentionPolicy::kDense,  AttentionPolicy::kTokenButler, AttentionPolicy::kSketch,
    AttentionPolicy::kPca,    AttentionPolicy::kQuest,       AttentionPolicy::kExact,
    AttentionPolicy::kSnapKv, AttentionPolicy::kH2o,         AttentionPolicy::kStreamingLlm,
    AttentionPolicy::kXkv,    AttentionPolicy::kRandom,
};

using Policies = unsigned;  // a set, one bit each

constexpr Policies Of(AttentionPolicy policy) { return 1u << static_cast<unsigned>(policy); }

constexpr Policies kPredicting =
    Of(AttentionPolicy::kTokenButler) | Of(AttentionPolicy::kSketch) | Of(AttentionPolicy::kPca);
constexpr Policies kScanning =
    kPredicting | Of(AttentionPolicy::kExact) | Of(AttentionPolicy::kRandom);
constexpr Policies kSparse = kScanning | Of(AttentionPolicy::kQuest) |
                             Of(AttentionPolicy::kSnapKv) | Of(AttentionPolicy::kH2o) |
                             Of(AttentionPolicy::kStreamingLlm) | Of(AttentionPolicy::kXkv);

// Calls visit(name, member of AttentionParams, member of AttentionOptions, policies that read it)
// for every option but setting and policy.
template <typename Visit>
void ForEachOption(const Visit& visit) {
  using Params = AttentionParams;
  using Options = AttentionOptions;
  visit("token_budget", &Params::token_budget, &Options::token_budget, kSparse);
  visit("sink_tokens", &Params::sink_tokens, &Options::sink_tokens,
        kScanning | Of(AttentionPolicy::kQuest) | Of(AttentionPolicy::kStreamingLlm));
  visit("local_window", &Params::local_window, &Options::local_window,
        kScanning | Of(AttentionPolicy::kQuest) | Of(AttentionPolicy::kSnapKv));
  visit("prediction_interval", &Params::prediction_interval, &Options::prediction_interval,
        kScanning);
  visit("candidates", &Params::candidates, &Options::candidates, kScanning);
  visit("neighbours", &Params::neighbours, &Options::neighbours, kScanning);
  visit("top_p", &Params::top_p, &Options::top_p, kScanning);
  visit("query", &Params::query, &Options::query, kPredicting);
  visit("keys", &Params::keys, &Options::keys, kPredicting);
  visit("scan_fraction", &Params::scan_fraction, &Options::scan_fraction, kPredicting);
  visit("dense_first_layer", &Params::dense_first_layer, &Options::dense_first_layer, kSparse);
  visit("misses", &Params::misses, &Options::misses, kSparse);
}

std::string Names(Policies policies) {
  std::string names;
  for (const AttentionPolicy policy : kAllPolicies) {
    if ((policies & Of(policy)) == 0) continue;
    names += names.empty() ? "" : ", ";
    names += PolicyName(policy);
  }
  return names;
}

// `params` for another policy: what that one has no use for, or has defaults of its own for, is
// replaced by its defaults.
AttentionParams WithPolicy(AttentionPolicy policy, AttentionParams params) {
  const AttentionParams before = DefaultParams(params.policy);
  const AttentionParams after = DefaultParams(policy);
  ForEachOption([&](const char*, auto param, auto, Policies users) {
    const bool is_used = (users & Of(policy)) != 0;
    if (!is_used || after.*param != before.*param) params.*param = after.*param;
  });
  if (policy != params.policy) {
    // Unset, they mean something else to each policy.
    params.query.reset();
    params.keys.reset();
    params.scan_fraction = after.scan_fraction;
  }
  params.policy = policy;
  return params;
}

// As many candidates as that many budgets hold.
int Candidates(double budgets, int token_budget) {
  return static_cast<int>(
      std::clamp<double>(std::round(budgets * token_budget), 0, AttentionParams::kMostTokens));
}

absl::Status CheckUsed(AttentionPolicy policy, const AttentionOptions& options) {
  absl::Status status;
  ForEachOption([&](const char* name, auto, auto option, Policies users) {
    if (!status.ok() || !(options.*option).has_value() || (users & Of(policy)) != 0) return;
    const std::string field = std::string("attention.") + name;
    status =
        WithField(InvalidArgumentError("{} is set, which attention.policy \"{}\" does not use; "
                                       "must be unset or the policy one of {}",
                                       field, PolicyName(policy), Names(users)),
                  field);
  });
  return status;
}

}  // namespace

std::string_view AttentionSettingName(AttentionSetting setting) {
  return setting == AttentionSetting::kQuality ? "quality" : "fast";
}

absl::StatusOr<AttentionSetting> ParseAttentionSetting(std::string_view name) {
  for (const AttentionSetting setting : kAttentionSettings) {
    if (name == AttentionSettingName(setting)) return setting;
  }
  return WithField(
      InvalidArgumentError("attention.setting is \"{}\", must be one of quality, fast", name),
      "attention.setting");
}

AttentionParams WithSetting(AttentionSetting setting, AttentionParams params) {
  params = WithPolicy(AttentionPolicy::kSketch, params);
  params.query = QuerySource::kReal;
  // docs/adr/0010-scans-and-last-decisions.md has the measurements.
  const bool is_fast = setting == AttentionSetting::kFast;
  params.keys = is_fast ? KeyFormat::kBits1 : KeyFormat::kBits2;
  params.scan_fraction = is_fast ? 0.25f : 1.0f;
  params.prediction_interval = is_fast ? 4 : 1;
  params.candidates = 0;
  return params;
}

bool AttentionOptions::any() const {
  bool any = setting.has_value() || policy.has_value();
  ForEachOption(
      [&](const char*, auto, auto option, Policies) { any |= (this->*option).has_value(); });
  return any;
}

absl::StatusOr<AttentionParams> ResolveAttention(const AttentionParams& defaults,
                                                 const AttentionOptions& options) {
  AttentionParams params = defaults;
  const bool has_early_candidates =
      params.query == QuerySource::kLookahead && !options.candidates.has_value();
  if (options.setting) {
    params = WithSetting(*options.setting, params);
    if (options.policy && *options.policy != params.policy) {
      return WithField(
          InvalidArgumentError(
              "attention.setting is \"{}\" with attention.policy \"{}\", must be unset or the "
              "policy \"{}\"",
              AttentionSettingName(*options.setting), PolicyName(*options.policy),
              PolicyName(params.policy)),
          "attention.setting");
    }
  }
  if (options.policy && *options.policy != params.policy) {
    params = WithPolicy(*options.policy, params);
  }
  RETURN_IF_ERROR(CheckUsed(params.policy, options));
  if (options.token_budget && params.candidates > 0) {
    params.candidates = Candidates(static_cast<double>(params.candidates) / params.token_budget,
                                   *options.token_budget);
  }
  ForEachOption([&](const char*, auto param, auto option, Policies) {
    if ((options.*option).has_value()) params.*param = *(options.*option);
  });
  if (has_early_candidates && params.query != QuerySource::kLookahead) params.candidates = 0;
  RETURN_IF_ERROR(params.Validate());
  return params;
}

bool UsesOption(AttentionPolicy policy, std::string_view option) {
  bool uses = false;
  ForEachOption([&](const char* name, auto, auto, Policies users) {
    if (option == name) uses = (users & Of(policy)) != 0;
  });
  return uses;
}

}  // namespace tokenbutler
