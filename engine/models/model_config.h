#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tokenbutler {

// RoPE frequencies and their scaling, in Hugging Face's terms (modeling_rope_utils).
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };
  float theta = 10000.0f;
  Scaling scaling = Scaling::kNone;
  float factor = 1.0f;
  int original_max_position = 0;  // 0: the model's own max_position
  // llama3
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;
  // yarn
  float beta_fast = 32.0f, beta_slow = 1.0f;
  std::optional<float> attention_factor;
  std::optional<float> mscale, mscale_all_dim;
  bool truncate = true;
  // GGUF's rope_freqs.weight: each inverse frequency is divided by its factor. [head_dim / 2]
  std::vector<float> frequency_factors;
};

// A decoder-only transformer's shape. Filled by one file per architecture (llama.cc, qwen2.cc,
// mistral.cc) from config.json or GGUF metadata; names are Hugging Face's.
struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "mistral"
  std::string name;          // for people and GetModelInfo
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position = 0;  // context the file declares, in tokens
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  RopeConfig rope;
  // Window of each layer in tokens, the current one included; 0: full attention. [num_layers]
  std::vector<int> sliding_window;

  int group_size() const { return num_heads / num_kv_heads; }
};

// Checks every number against its bounds and against the others. INVALID_ARGUMENT naming the field,
// its value and the bound. A valid configuration's products of two sizes fit in 48 bits.
absl::Status ValidateModelConfig(const ModelConfig& config);

}  // namespace tokenbutler
