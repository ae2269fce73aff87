#include "engine/models/model_config.h"

#include <string_view>

#include "base/status.h"

namespace tokenbutler {
namespace {

absl::Status Between(std::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgumentError("{} is {}, must be from {} to {}", field, value, min, max);
}

absl::Status CheckHeads(const ModelConfig& config) {
  RETURN_IF_ERROR(Between("num_heads", config.num_heads, 1, 1024));
  RETURN_IF_ERROR(Between("num_kv_heads", config.num_kv_heads, 1, config.num_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    return InvalidArgumentError("num_heads is {}, must be a multiple of num_kv_heads {}",
                                config.num_heads, config.num_kv_heads);
  }
  RETURN_IF_ERROR(Between("head_dim", config.head_dim, 2, 1024));
  if (config.head_dim % 2 != 0) {
    return InvalidArgumentError("head_dim is {}, must be even", config.head_dim);
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (!(rope.theta > 1.0f && rope.theta <= 1e15f)) {
    return InvalidArgumentError("rope_theta is {}, must be above 1 and at most 1e15", rope.theta);
  }
  const std::vector<float>& factors = rope.frequency_factors;
  if (!factors.empty() && static_cast<int>(factors.size()) != config.head_dim / 2) {
    return InvalidArgumentError("RoPE has {} frequency factors, must have head_dim / 2 = {}",
                                factors.size(), config.head_dim / 2);
  }
  for (const float factor : factors) {
    if (!(factor > 0.0f && factor <= 1e6f)) {
      return InvalidArgumentError("a RoPE frequency factor is {}, must be above 0, at most 1e6",
                                  factor);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateModelConfig(const ModelConfig& config) {
  RETURN_IF_ERROR(Between("num_layers", config.num_layers, 1, 1024));
  RETURN_IF_ERROR(Between("hidden_size", config.hidden_size, 1, 1 << 18));
  RETURN_IF_ERROR(Between("intermediate_size", config.intermediate_size, 1, 1 << 22));
  RETURN_IF_ERROR(CheckHeads(config));
  RETURN_IF_ERROR(Between("vocab_size", config.vocab_size, 1, 1 << 24));
  RETURN_IF_ERROR(Between("max_position", config.max_position, 1, 1 << 28));
  if (!(config.rms_norm_eps > 0.0f && config.rms_norm_eps < 1.0f)) {
    return InvalidArgumentError("rms_norm_eps is {}, must be between 0 and 1", config.rms_norm_eps);
  }
  if (static_cast<int>(config.sliding_window.size()) != config.num_layers) {
    return InvalidArgumentError("sliding_window has {} entries, must have one per layer: {}",
                                config.sliding_window.size(), config.num_layers);
  }
  for (const int window : config.sliding_window) {
    RETURN_IF_ERROR(Between("sliding_window", window, 0, 1 << 28));
  }
  return CheckRope(config);
}

}  // namespace tokenbutler
