#include "engine/models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tokenbutler {
namespace {

constexpr Bounds<float> kTheta = {1.0f, 1e15f};
constexpr Bounds<float> kFactor = {1.0f, 65536.0f};
constexpr Bounds<float> kPositive = {1e-6f, 1e6f};
constexpr Bounds<int> kPositions = {1, 1 << 28};

absl::Status ScalingOf(std::string_view type, std::string_view field, RopeConfig::Scaling* out) {
  if (type == "default" || type == "none") {
    *out = RopeConfig::Scaling::kNone;
  } else if (type == "linear") {
    *out = RopeConfig::Scaling::kLinear;
  } else if (type == "llama3") {
    *out = RopeConfig::Scaling::kLlama3;
  } else if (type == "yarn") {
    *out = RopeConfig::Scaling::kYarn;
  } else {
    return UnimplementedError(
        "{} is '{}', which is not implemented (default, linear, llama3, yarn are)", field, type);
  }
  return absl::OkStatus();
}

// Positive or absent; leaves *out unset when it is absent.
absl::Status ReadUnsetFloat(const ConfigFields& fields, const std::string& field,
                            std::optional<float>* out) {
  float value = 0;
  ASSIGN_OR_RETURN(const std::optional<double> found, fields.FindFloat(field));
  if (!found.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(ReadFloat(fields, field, {0.0f, 1e6f}, &value));
  *out = value;
  return absl::OkStatus();
}

absl::Status ReadYarn(const ConfigFields& fields, const std::string& prefix, RopeConfig* rope) {
  RETURN_IF_ERROR(ReadUnsetFloat(fields, prefix + "attention_factor", &rope->attention_factor));
  RETURN_IF_ERROR(ReadUnsetFloat(fields, prefix + "mscale", &rope->mscale));
  RETURN_IF_ERROR(ReadUnsetFloat(fields, prefix + "mscale_all_dim", &rope->mscale_all_dim));
  RETURN_IF_ERROR(ReadOptionalFloat(fields, prefix + "beta_fast", kPositive, &rope->beta_fast));
  RETURN_IF_ERROR(ReadOptionalFloat(fields, prefix + "beta_slow", kPositive, &rope->beta_slow));
  if (rope->beta_fast < rope->beta_slow) {
    return InvalidArgumentError("{}beta_fast is {}, must be at least beta_slow {}", prefix,
                                rope->beta_fast, rope->beta_slow);
  }
  return ReadOptionalBool(fields, prefix + "truncate", &rope->truncate);
}

absl::Status ReadLlama3(const ConfigFields& fields, const std::string& prefix, RopeConfig* rope) {
  RETURN_IF_ERROR(ReadFloat(fields, prefix + "low_freq_factor", kPositive, &rope->low_freq_factor));
  RETURN_IF_ERROR(
      ReadFloat(fields, prefix + "high_freq_factor", kPositive, &rope->high_freq_factor));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return InvalidArgumentError("{}high_freq_factor is {}, must be above low_freq_factor {}",
                                prefix, rope->high_freq_factor, rope->low_freq_factor);
  }
  return absl::OkStatus();
}

// A yarn file may declare the context before or after the extension.
void ExtendForYarn(ModelConfig* config) {
  const RopeConfig& rope = config->rope;
  if (rope.scaling != RopeConfig::Scaling::kYarn) return;
  const double extended = std::floor(double{rope.factor} * rope.original_max_position);
  config->max_position =
      std::max(config->max_position, static_cast<int>(std::min<double>(extended, kPositions.max)));
}

// llama.cpp multiplies YaRN's usual attention factor, 0.1 ln(factor) + 1, by the file's.
absl::Status ReadGgufYarn(const ConfigFields& fields, const std::string& scaling,
                          RopeConfig* rope) {
  RETURN_IF_ERROR(
      ReadOptionalFloat(fields, scaling + "yarn_beta_fast", kPositive, &rope->beta_fast));
  RETURN_IF_ERROR(
      ReadOptionalFloat(fields, scaling + "yarn_beta_slow", kPositive, &rope->beta_slow));
  float ext_factor = 1.0f, attn_factor = 1.0f;
  RETURN_IF_ERROR(
      ReadOptionalFloat(fields, scaling + "yarn_ext_factor", {-1.0f, 1e6f}, &ext_factor));
  if (ext_factor != 1.0f && ext_factor != -1.0f) {
    return UnimplementedError("{}yarn_ext_factor is {}, only 1 is implemented", scaling,
                              ext_factor);
  }
  for (const char* key : {"attn_factor", "yarn_attn_factor"}) {
    RETURN_IF_ERROR(ReadOptionalFloat(fields, scaling + key, kPositive, &attn_factor));
  }
  if (attn_factor != 1.0f) {
    rope->attention_factor = attn_factor * (0.1f * std::log(rope->factor) + 1.0f);
  }
  return absl::OkStatus();
}

// The factor, under its present name or the one of early files; 0 and absence mean 1.
absl::Status ReadGgufFactor(const ConfigFields& fields, const std::string& arch, float* factor) {
  const std::string present = arch + ".rope.scaling.factor";
  const std::string field = fields.Has(present) ? present : arch + ".rope.scale_linear";
  *factor = 0.0f;
  RETURN_IF_ERROR(ReadOptionalFloat(fields, field, {0.0f, kFactor.max}, factor));
  if (*factor == 0.0f) *factor = 1.0f;
  if (*factor < kFactor.min) {
    return InvalidArgumentError("{} is {}, must be at least {}", field, *factor, kFactor.min);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRopeScaling(const ConfigFields& fields, std::string_view prefix_view,
                             int declared_max_position, RopeConfig* rope) {
  const std::string prefix(prefix_view);
  const std::string type_field = prefix + (fields.Has(prefix + "rope_type") ? "rope_type" : "type");
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.FindString(type_field));
  RETURN_IF_ERROR(ScalingOf(type.value_or("default"), type_field, &rope->scaling));
  if (rope->scaling == RopeConfig::Scaling::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(ReadFloat(fields, prefix + "factor", kFactor, &rope->factor));
  rope->original_max_position = declared_max_position;
  RETURN_IF_ERROR(ReadOptionalInt(fields, prefix + "original_max_position_embeddings", kPositions,
                                  &rope->original_max_position));
  if (rope->scaling == RopeConfig::Scaling::kYarn) return ReadYarn(fields, prefix, rope);
  if (rope->scaling == RopeConfig::Scaling::kLlama3) return ReadLlama3(fields, prefix, rope);
  return absl::OkStatus();
}

absl::Status ReadHfRope(const ConfigFields& fields, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  const bool has_parameters = fields.Has("rope_parameters.rope_type");
  if (fields.Has("rope_parameters.full_attention") ||
      fields.Has("rope_parameters.sliding_attention")) {
    return UnimplementedError("rope_parameters differ by layer type, which is not implemented");
  }
  const std::string prefix = has_parameters ? "rope_parameters." : "rope_scaling.";
  RETURN_IF_ERROR(ReadOptionalFloat(fields, "rope_theta", kTheta, &rope.theta));
  RETURN_IF_ERROR(ReadOptionalFloat(fields, "rope_parameters.rope_theta", kTheta, &rope.theta));
  float rotary_part = 1.0f;
  RETURN_IF_ERROR(ReadOptionalFloat(fields, "partial_rotary_factor", {0.0f, 1.0f}, &rotary_part));
  if (rotary_part != 1.0f) {
    return UnimplementedError("partial_rotary_factor is {}, only 1 is implemented", rotary_part);
  }
  RETURN_IF_ERROR(ReadRopeScaling(fields, prefix, config->max_position, &rope));
  ExtendForYarn(config);
  return absl::OkStatus();
}

absl::Status ReadGgufRope(const ConfigFields& fields, std::string_view arch_view,
                          ModelConfig* config) {
  const std::string arch(arch_view), scaling = arch + ".rope.scaling.";
  RopeConfig& rope = config->rope;
  RETURN_IF_ERROR(ReadOptionalFloat(fields, arch + ".rope.freq_base", kTheta, &rope.theta));
  RETURN_IF_ERROR(ReadGgufFactor(fields, arch, &rope.factor));
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.FindString(scaling + "type"));
  RETURN_IF_ERROR(ScalingOf(type.value_or("linear"), scaling + "type", &rope.scaling));
  if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    return UnimplementedError("{}type is 'llama3', which GGUF stores as rope_freqs.weight",
                              scaling);
  }
  if (rope.scaling == RopeConfig::Scaling::kNone) rope.factor = 1.0f;
  if (rope.factor == 1.0f) rope.scaling = RopeConfig::Scaling::kNone;
  if (rope.scaling != RopeConfig::Scaling::kNone) {
    rope.original_max_position = config->max_position;
    RETURN_IF_ERROR(ReadOptionalInt(fields, scaling + "original_context_length", kPositions,
                                    &rope.original_max_position));
  }
  if (rope.scaling == RopeConfig::Scaling::kYarn) {
    RETURN_IF_ERROR(ReadGgufYarn(fields, scaling, &rope));
  }
  if (!fields.TensorShape("rope_freqs.weight").empty()) {
    ASSIGN_OR_RETURN(rope.frequency_factors, fields.TensorValues("rope_freqs.weight", 512));
  }
  ExtendForYarn(config);
  return absl::OkStatus();
}

}  // namespace tokenbutler
