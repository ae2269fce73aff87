#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "engine/models/config_fields.h"
#include "engine/models/model_config.h"

namespace tokenbutler {

// What one file format calls the tensors of a decoder-only transformer, without the ".weight" and
// ".bias" that end every name; "{}" is the layer's number.
struct TensorNames {
  std::string_view token_embedding;
  std::string_view input_norm;
  std::string_view q_proj, k_proj, v_proj, o_proj;
  std::string_view post_attention_norm;
  std::string_view gate_proj, up_proj, down_proj;
  std::string_view final_norm;
  std::string_view lm_head;
};

// The names that nearly every Llama-like model has.
inline constexpr TensorNames kHfTensorNames = {
    .token_embedding = "model.embed_tokens",
    .input_norm = "model.layers.{}.input_layernorm",
    .q_proj = "model.layers.{}.self_attn.q_proj",
    .k_proj = "model.layers.{}.self_attn.k_proj",
    .v_proj = "model.layers.{}.self_attn.v_proj",
    .o_proj = "model.layers.{}.self_attn.o_proj",
    .post_attention_norm = "model.layers.{}.post_attention_layernorm",
    .gate_proj = "model.layers.{}.mlp.gate_proj",
    .up_proj = "model.layers.{}.mlp.up_proj",
    .down_proj = "model.layers.{}.mlp.down_proj",
    .final_norm = "model.norm",
    .lm_head = "lm_head",
};
inline constexpr TensorNames kGgufTensorNames = {
    .token_embedding = "token_embd",
    .input_norm = "blk.{}.attn_norm",
    .q_proj = "blk.{}.attn_q",
    .k_proj = "blk.{}.attn_k",
    .v_proj = "blk.{}.attn_v",
    .o_proj = "blk.{}.attn_output",
    .post_attention_norm = "blk.{}.ffn_norm",
    .gate_proj = "blk.{}.ffn_gate",
    .up_proj = "blk.{}.ffn_up",
    .down_proj = "blk.{}.ffn_down",
    .final_norm = "output_norm",
    .lm_head = "output",
};

// Everything one architecture has to say: who it is, how its configuration is read, what its
// tensors are called. One small file per architecture; architectures.cc lists them. Immutable.
struct Architecture {
  std::string_view name;           // ModelConfig::architecture
  std::string_view hf_model_type;  // `model_type` in config.json
  std::string_view hf_class;       // in `architectures` in config.json
  std::string_view gguf_name;      // `general.architecture`; empty: none of its own

  // llama.cpp's converter reorders the rows of Q and K for interleaved RoPE (channels 2i and 2i+1
  // rotate together); true when it does so for this architecture. The loader turns them back to
  // Hugging Face's order (channels i and i + head_dim / 2).
  bool gguf_interleaves_qk = false;

  // Fill a default ModelConfig, bounds checked field by field. NOT_FOUND, INVALID_ARGUMENT or
  // UNIMPLEMENTED naming the field.
  absl::Status (*read_hf)(const ConfigFields& fields, ModelConfig* config) = nullptr;
  absl::Status (*read_gguf)(const ConfigFields& fields, ModelConfig* config) = nullptr;

  TensorNames hf_tensors = kHfTensorNames;
  TensorNames gguf_tensors = kGgufTensorNames;
};

}  // namespace tokenbutler
