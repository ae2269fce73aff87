#include "engine/predictor/fingerprint.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"

namespace tokenbutler {
namespace {

bool IsNear(float a, float b) {
  return std::abs(a - b) <= 1e-3f * std::max(std::abs(a), std::abs(b));
}

template <typename T>
std::string Differs(std::string_view field, const T& wanted, const T& model) {
  return fmt::format("{} is {}, the model's is {}", field, wanted, model);
}

}  // namespace

ModelFingerprint FingerprintOf(const ModelConfig& config, const Rope& rope) {
  return {.architecture = config.architecture,
          .num_layers = config.num_layers,
          .hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .qkv_bias = config.qkv_bias,
          .rms_norm_eps = config.rms_norm_eps,
          .rope_attention_factor = rope.attention_factor(),
          .rope_inverse_frequencies = {rope.inverse_frequencies().begin(),
                                       rope.inverse_frequencies().end()}};
}

std::string DifferenceFromModel(const ModelFingerprint& wanted, const ModelFingerprint& model) {
  if (wanted.architecture != model.architecture) {
    return Differs("architecture", wanted.architecture, model.architecture);
  }
  const struct {
    std::string_view field;
    int ModelFingerprint::*member;
  } sizes[] = {{"num_layers", &ModelFingerprint::num_layers},
               {"hidden_size", &ModelFingerprint::hidden_size},
               {"intermediate_size", &ModelFingerprint::intermediate_size},
               {"num_heads", &ModelFingerprint::num_heads},
               {"num_kv_heads", &ModelFingerprint::num_kv_heads},
               {"head_dim", &ModelFingerprint::head_dim}};
  for (const auto& [field, member] : sizes) {
    if (wanted.*member != model.*member) return Differs(field, wanted.*member, model.*member);
  }
  if (wanted.qkv_bias != model.qkv_bias) {
    return Differs("qkv_bias", wanted.qkv_bias, model.qkv_bias);
  }
  if (!IsNear(wanted.rms_norm_eps, model.rms_norm_eps)) {
    return Differs("rms_norm_eps", wanted.rms_norm_eps, model.rms_norm_eps);
  }
  if (!IsNear(wanted.rope_attention_factor, model.rope_attention_factor)) {
    return Differs("rope_attention_factor", wanted.rope_attention_factor,
                   model.rope_attention_factor);
  }
  const std::vector<float>& a = wanted.rope_inverse_frequencies;
  const std::vector<float>& b = model.rope_inverse_frequencies;
  if (a.size() != b.size()) return Differs("the number of RoPE frequencies", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!IsNear(a[i], b[i])) {
      return Differs(fmt::format("rope_inverse_frequencies[{}]", i), a[i], b[i]);
    }
  }
  return "";
}

}  // namespace tokenbutler
