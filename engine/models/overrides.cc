#include "engine/models/overrides.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "engine/models/json_fields.h"
#include "engine/models/rope_config.h"

namespace tokenbutler {
namespace {

constexpr double kMaxPositions = 1 << 28;
constexpr char kRopeScaling[] = "--rope-scaling";

// What the model was trained for: the scaling's original context, or what the file declares.
int OriginalMaxPosition(const ModelConfig& config) {
  const int original = config.rope.original_max_position;
  return config.rope.scaling == RopeConfig::Scaling::kYarn && original > 0 ? original
                                                                           : config.max_position;
}

absl::Status ReplaceScaling(const std::string& json, ModelConfig* config) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Parse(json, kRopeScaling));
  if (!fields.Has("rope_type") && !fields.Has("type")) {
    return InvalidArgumentError("--rope-scaling has no rope_type");
  }
  const int original = OriginalMaxPosition(*config);
  RopeConfig rope;
  rope.theta = config->rope.theta;
  const absl::Status read = ReadRopeScaling(fields, "", original, &rope);
  if (!read.ok()) {
    // A value of the wrong JSON type is reported with its source already.
    const bool named = std::string_view(read.message().data(), read.message().size())
                           .substr(0, sizeof(kRopeScaling) - 1) == kRopeScaling;
    return named ? read : Annotate(read, kRopeScaling);
  }

  double extended = original;
  if (rope.scaling == RopeConfig::Scaling::kYarn) {
    extended = std::floor(double{rope.factor} * rope.original_max_position);
  } else if (rope.scaling == RopeConfig::Scaling::kLinear) {
    extended = std::floor(double{rope.factor} * original);
  }
  if (extended > kMaxPositions) {
    return InvalidArgumentError("--rope-scaling extends the context to {} tokens, at most {}",
                                extended, kMaxPositions);
  }
  config->rope = std::move(rope);
  config->max_position = static_cast<int>(extended);
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyOverrides(const ModelOverrides& overrides, ModelConfig* config) {
  if (!overrides.rope_scaling.empty()) {
    RETURN_IF_ERROR(ReplaceScaling(overrides.rope_scaling, config));
  }
  if (overrides.max_model_len == 0) return absl::OkStatus();
  if (overrides.max_model_len < 0 || overrides.max_model_len > config->max_position) {
    return InvalidArgumentError(
        "--max-model-len is {}, must be from 1 to the model's context of {} tokens (a longer one "
        "needs --rope-scaling)",
        overrides.max_model_len, config->max_position);
  }
  config->max_position = overrides.max_model_len;
  return absl::OkStatus();
}

}  // namespace tokenbutler
