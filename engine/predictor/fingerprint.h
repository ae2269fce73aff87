#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/models/model_config.h"
#include "engine/models/rope.h"

namespace tokenbutler {

// What of a model's architecture a predictor depends on. Models that agree in it can exchange
// predictors, well or badly; models that do not, cannot.
struct ModelFingerprint {
  std::string architecture;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool qkv_bias = false;
  float rms_norm_eps = 0;
  // RoPE as it acts: the same whichever way a file describes it.
  float rope_attention_factor = 1;
  std::vector<float> rope_inverse_frequencies;  // [head_dim / 2]

  int group_size() const { return num_heads / num_kv_heads; }
};

ModelFingerprint FingerprintOf(const ModelConfig& config, const Rope& rope);

// The first difference, "num_layers is 30, the model's is 24"; empty: none. Floating-point numbers
// may differ by a thousandth: file formats round them differently.
std::string DifferenceFromModel(const ModelFingerprint& wanted, const ModelFingerprint& model);

}  // namespace tokenbutler
