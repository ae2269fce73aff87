#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/models/model_config.h"
#include "engine/models/overrides.h"
#include "engine/tokenizer/tokenizer_spec.h"
#include "engine/weights/model_weights.h"

namespace tokenbutler {

struct LoadOptions {
  // Of the matrices: kBF16 or kF32; unset: bf16 on a CPU with bf16 instructions (AVX512-BF16),
  // float32 otherwise. float32 keeps dequantised values exactly; bf16 rounds them to nearest even.
  std::optional<DType> compute_dtype;
  ModelOverrides overrides;
  // Threads that dequantise; 0: as many as the process may use.
  int num_threads = 0;
  // Everything but the weights: configuration, tokenizer, chat template.
  bool without_weights = false;
  // Called now and then, on the thread that called LoadModel, with bytes written so far and in all.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// Where a Hugging Face folder keeps its tokenizer.
struct HfTokenizerFiles {
  std::string tokenizer_json;         // path of tokenizer.json
  std::string tokenizer_config_json;  // path of tokenizer_config.json; empty when there is none
};

// Nothing (a model without a tokenizer), data inside a GGUF file, or files of a folder.
using TokenizerSource = std::variant<std::monostate, TokenizerSpec, HfTokenizerFiles>;

// What the model's makers recommend; fields the files do not declare are unset.
struct GenerationDefaults {
  std::vector<int32_t> eos_ids;  // every id that ends a generation; without duplicates
  std::optional<int32_t> bos_id;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

struct LoadedModel {
  ModelConfig config;  // overrides applied, validated
  ModelWeights weights;
  DType compute_dtype = DType::kF32;  // of the matrices
  TokenizerSource tokenizer;
  std::optional<std::string> chat_template;  // Jinja source
  std::string bos_token, eos_token;          // their text, for the chat template; may be empty
  GenerationDefaults generation;
};

// Loads `path`: a .gguf file (the first of a split set brings the others) or a Hugging Face folder
// (config.json, *.safetensors with or without an index, tokenizer.json). Every tensor is found, its
// shape and type checked, before the first large allocation. GGUF's rotary row order of Q and K is
// turned back into Hugging Face's (first half | second half) where the architecture asks for it.
//
// NOT_FOUND naming a missing file or tensor; INVALID_ARGUMENT naming file, field, value and bound,
// or tensor, shape found and shape wanted, or a tensor that the architecture has no use for;
// UNIMPLEMENTED naming an architecture, RoPE type, activation or quantisation that is not known;
// RESOURCE_EXHAUSTED when the system refuses the memory.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const LoadOptions& options);

}  // namespace tokenbutler
