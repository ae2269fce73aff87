#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "engine/selection/attention_params.h"

namespace tokenbutler {

// Named choices of policy and options that were measured (docs/performance.md).
enum class AttentionSetting {
  kQuality,  // close to dense attention
  kFast,     // trades some of that for speed
};

inline constexpr AttentionSetting kAttentionSettings[] = {AttentionSetting::kQuality,
                                                          AttentionSetting::kFast};

std::string_view AttentionSettingName(AttentionSetting setting);  // "quality"
absl::StatusOr<AttentionSetting> ParseAttentionSetting(std::string_view name);

// `params` with everything that the setting fixes: the policy and how it works, not the number of
// tokens: candidates are counted in budgets.
AttentionParams WithSetting(AttentionSetting setting, AttentionParams params);

// What somebody (a request, the server's flags) asks for; unset: as it was.
struct AttentionOptions {
  std::optional<AttentionSetting> setting;
  std::optional<AttentionPolicy> policy;
  // As in AttentionParams.
  std::optional<int> token_budget, sink_tokens, local_window, prediction_interval, candidates,
      neighbours;
  std::optional<float> top_p, scan_fraction;
  std::optional<QuerySource> query;
  std::optional<KeyFormat> keys;
  std::optional<bool> dense_first_layer;
  std::optional<MissRule> misses;

  bool any() const;  // whether anything is set
};

// `defaults` changed by `options`: the setting first, then the policy, then the rest. Another
// policy begins with its own defaults (DefaultParams) wherever they differ from those of the policy
// in `defaults`. Candidates that are not set follow the budget, in proportion, and are none when
// `defaults` has them for a lookahead query and another is asked for. INVALID_ARGUMENT
// naming the field: an option that the policy does not use, a setting of another policy, what
// AttentionParams::Validate refuses.
absl::StatusOr<AttentionParams> ResolveAttention(const AttentionParams& defaults,
                                                 const AttentionOptions& options);

// Whether a policy reads an option ("token_budget"). False for names that are none.
bool UsesOption(AttentionPolicy policy, std::string_view option);

}  // namespace tokenbutler
