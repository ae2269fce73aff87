#include "engine/selection/attention_params.h"

#include <algorithm>
#include <string>

#include "base/enum_names.h"
#include "base/status_details.h"

namespace tokenbutler {
namespace {

constexpr EnumNames<AttentionPolicy, 11> kPolicies = {{
    {"dense", AttentionPolicy::kDense},
    {"tokenbutler", AttentionPolicy::kTokenButler},
    {"sketch", AttentionPolicy::kSketch},
    {"pca", AttentionPolicy::kPca},
    {"quest", AttentionPolicy::kQuest},
    {"exact", AttentionPolicy::kExact},
    {"snapkv", AttentionPolicy::kSnapKv},
    {"h2o", AttentionPolicy::kH2o},
    {"streaming_llm", AttentionPolicy::kStreamingLlm},
    {"xkv", AttentionPolicy::kXkv},
    {"random", AttentionPolicy::kRandom},
}};
constexpr EnumNames<QuerySource, 3> kQueries = {{
    {"real", QuerySource::kReal},
    {"lookahead", QuerySource::kLookahead},
    {"mlp", QuerySource::kMlp},
}};
constexpr EnumNames<KeyFormat, 4> kKeys = {{
    {"projected", KeyFormat::kProjected},
    {"bits1", KeyFormat::kBits1},
    {"bits2", KeyFormat::kBits2},
    {"bits4", KeyFormat::kBits4},
}};
constexpr EnumNames<MissRule, 2> kMisses = {{
    {"on_demand", MissRule::kOnDemand},
    {"deferred", MissRule::kDeferred},
}};

template <typename Enum, size_t kCount>
absl::StatusOr<Enum> Parse(const EnumNames<Enum, kCount>& names, std::string_view field,
                           std::string_view text) {
  absl::StatusOr<Enum> value = ParseEnum(names, field, text);
  if (!value.ok()) return WithField(value.status(), field);
  return value;
}

constexpr int kMostTokens = AttentionParams::kMostTokens;

absl::Status CheckTokens(std::string_view field, int value, int least) {
  if (value >= least && value <= kMostTokens) return absl::OkStatus();
  return WithField(
      InvalidArgumentError("{} is {}, must be in [{}, {}]", field, value, least, kMostTokens),
      field);
}

absl::Status CheckShare(std::string_view field, float value) {
  if (value > 0 && value <= 1) return absl::OkStatus();
  return WithField(InvalidArgumentError("{} is {}, must be in (0, 1]", field, value), field);
}

}  // namespace

absl::Status AttentionParams::Validate() const {
  if (!sparse()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckTokens("attention.token_budget", token_budget, 1));
  RETURN_IF_ERROR(CheckTokens("attention.sink_tokens", sink_tokens, 0));
  RETURN_IF_ERROR(CheckTokens("attention.local_window", local_window, 1));
  RETURN_IF_ERROR(CheckTokens("attention.candidates", candidates, 0));
  RETURN_IF_ERROR(CheckTokens("attention.neighbours", neighbours, 0));
  if (prediction_interval < 1 || prediction_interval > 16) {
    return WithField(InvalidArgumentError("attention.prediction_interval is {}, must be in [1, 16]",
                                          prediction_interval),
                     "attention.prediction_interval");
  }
  if (token_budget <= sink_tokens + local_window) {
    return WithField(
        InvalidArgumentError("attention.token_budget is {}, must be more than sink_tokens + "
                             "local_window, {} + {}",
                             token_budget, sink_tokens, local_window),
        "attention.token_budget");
  }
  if (candidates != 0 && candidates < token_budget) {
    return WithField(
        InvalidArgumentError("attention.candidates is {}, must be 0 or at least token_budget, {}",
                             candidates, token_budget),
        "attention.candidates");
  }
  if (projected_dim != 16 && projected_dim != 32) {
    return WithField(
        InvalidArgumentError("attention.projected_dim is {}, must be 16 or 32", projected_dim),
        "attention.projected_dim");
  }
  RETURN_IF_ERROR(CheckShare("attention.top_p", top_p));
  RETURN_IF_ERROR(CheckShare("attention.scan_fraction", scan_fraction));
  if (scan_fraction < 1 && !scores_low_bit_keys()) {
    return WithField(InvalidArgumentError("attention.scan_fraction is {} with projected keys, must "
                                          "be 1 or attention.keys one of bits1, bits2, bits4",
                                          scan_fraction),
                     "attention.scan_fraction");
  }
  return absl::OkStatus();
}

bool AttentionParams::scores_low_bit_keys() const {
  switch (policy) {
    case AttentionPolicy::kSketch:
      return true;
    case AttentionPolicy::kTokenButler:
    case AttentionPolicy::kPca:
      return keys.value_or(KeyFormat::kProjected) != KeyFormat::kProjected;
    default:
      return false;
  }
}

AttentionParams AttentionParams::FittedTo(int num_tokens, int block_size) const {
  AttentionParams fitted = *this;
  fitted.sink_tokens = std::min(sink_tokens, num_tokens);
  fitted.local_window = std::min(local_window, std::max(num_tokens, 1));
  fitted.neighbours = std::min(neighbours, num_tokens);
  // A policy may ask for a budget above these three (CheckPolicy).
  const int least =
      fitted.sink_tokens + std::max(fitted.local_window, block_size) + prediction_interval;
  fitted.token_budget = std::min(token_budget, std::max(num_tokens, least));
  if (candidates > 0) {
    fitted.candidates = std::min(candidates, std::max(num_tokens, fitted.token_budget));
  }
  return fitted;
}

AttentionParams DefaultParams(AttentionPolicy policy) {
  AttentionParams params;
  params.policy = policy;
  switch (policy) {
    case AttentionPolicy::kStreamingLlm:
      params.sink_tokens = 4;
      params.local_window = 1;  // all of the budget but the sink tokens
      break;
    case AttentionPolicy::kSnapKv:
      params.sink_tokens = 0;
      params.local_window = 32;  // the queries that choose
      break;
    case AttentionPolicy::kQuest:
    case AttentionPolicy::kH2o:
    case AttentionPolicy::kXkv:
      params.sink_tokens = 0;
      params.local_window = 1;
      break;
    default:
      break;
  }
  return params;
}

AttentionParams DefaultStagedParams() {
  AttentionParams params = DefaultParams(AttentionPolicy::kSketch);
  params.query = QuerySource::kLookahead;
  params.candidates = params.token_budget + params.token_budget / 2;
  return params;
}

std::string_view PolicyName(AttentionPolicy policy) { return EnumName(kPolicies, policy); }
absl::StatusOr<AttentionPolicy> ParsePolicy(std::string_view name) {
  absl::StatusOr<AttentionPolicy> policy = Parse(kPolicies, "attention.policy", name);
  if (policy.ok()) return policy;
  return WithField(InvalidArgumentError("{} (quality and fast are values of attention.setting)",
                                        std::string(policy.status().message())),
                   "attention.policy");
}
std::string_view QuerySourceName(QuerySource query) { return EnumName(kQueries, query); }
absl::StatusOr<QuerySource> ParseQuerySource(std::string_view name) {
  return Parse(kQueries, "attention.query", name);
}
std::string_view KeyFormatName(KeyFormat keys) { return EnumName(kKeys, keys); }
absl::StatusOr<KeyFormat> ParseKeyFormat(std::string_view name) {
  return Parse(kKeys, "attention.keys", name);
}
std::string_view MissRuleName(MissRule rule) { return EnumName(kMisses, rule); }
absl::StatusOr<MissRule> ParseMissRule(std::string_view name) {
  return Parse(kMisses, "attention.misses", name);
}

}  // namespace tokenbutler
