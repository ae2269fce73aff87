// AttentionOptions, both ways.
#include <algorithm>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/field_check.h"
#include "server/proto_convert.h"

namespace tokenbutler {
namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == ' ';
}

// An empty name is an unset one.
template <typename Value, typename Parse>
absl::Status SetName(const char* field, const std::string& name, const Parse& parse,
                     std::optional<Value>* out) {
  constexpr size_t kMaxNameBytes = 64;
  if (name.empty()) return absl::OkStatus();
  // The parser's error repeats the name as it is.
  if (name.size() > kMaxNameBytes || !std::all_of(name.begin(), name.end(), IsNameChar)) {
    return BadChoice(field, name, "the names that its comment lists");
  }
  ASSIGN_OR_RETURN(*out, parse(name));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AttentionOptions> ToAttentionOptions(const v1::AttentionOptions& message) {
  AttentionOptions options;
  RETURN_IF_ERROR(
      SetName("attention.setting", message.setting(), ParseAttentionSetting, &options.setting));
  RETURN_IF_ERROR(SetName("attention.policy", message.policy(), ParsePolicy, &options.policy));
  RETURN_IF_ERROR(SetName("attention.query", message.query(), ParseQuerySource, &options.query));
  RETURN_IF_ERROR(SetName("attention.keys", message.keys(), ParseKeyFormat, &options.keys));
  RETURN_IF_ERROR(SetName("attention.misses", message.misses(), ParseMissRule, &options.misses));
  if (message.has_token_budget()) options.token_budget = message.token_budget();
  if (message.has_sink_tokens()) options.sink_tokens = message.sink_tokens();
  if (message.has_local_window()) options.local_window = message.local_window();
  if (message.has_prediction_interval()) {
    options.prediction_interval = message.prediction_interval();
  }
  if (message.has_candidates()) options.candidates = message.candidates();
  if (message.has_neighbours()) options.neighbours = message.neighbours();
  if (message.has_top_p()) options.top_p = message.top_p();
  if (message.has_scan_fraction()) options.scan_fraction = message.scan_fraction();
  if (message.has_dense_first_layer()) options.dense_first_layer = message.dense_first_layer();
  return options;
}

v1::AttentionOptions ToProto(const AttentionParams& params) {
  const auto uses = [&](const char* option) { return UsesOption(params.policy, option); };
  v1::AttentionOptions out;
  out.set_policy(std::string(PolicyName(params.policy)));
  if (uses("token_budget")) out.set_token_budget(params.token_budget);
  if (uses("sink_tokens")) out.set_sink_tokens(params.sink_tokens);
  if (uses("local_window")) out.set_local_window(params.local_window);
  if (uses("prediction_interval")) out.set_prediction_interval(params.prediction_interval);
  if (uses("candidates")) out.set_candidates(params.candidates);
  if (uses("neighbours")) out.set_neighbours(params.neighbours);
  if (uses("top_p")) out.set_top_p(params.top_p);
  if (params.query && uses("query")) out.set_query(std::string(QuerySourceName(*params.query)));
  if (params.keys && uses("keys")) out.set_keys(std::string(KeyFormatName(*params.keys)));
  if (uses("scan_fraction")) out.set_scan_fraction(params.scan_fraction);
  if (uses("dense_first_layer")) out.set_dense_first_layer(params.dense_first_layer);
  if (uses("misses")) out.set_misses(std::string(MissRuleName(params.misses)));
  return out;
}

}  // namespace tokenbutler
