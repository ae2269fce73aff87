#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "engine/models/config_fields.h"
#include "engine/models/model_config.h"

namespace tokenbutler {

// The parts of a configuration that all Llama-like architectures write the same way. Each
// architecture's file calls these and then says what is its own.

// What transformers' configuration class assumes where config.json is silent.
struct HfDefaults {
  int max_position = 2048;
  bool kv_heads_default_to_heads = false;  // else num_key_value_heads must be there
};

// config.json: sizes, norm, activation (silu only), tied head, RoPE, full attention in every layer.
// Refuses quantised checkpoints (`quantization_config`).
absl::Status ReadHfTransformer(const ConfigFields& fields, const HfDefaults& defaults,
                               ModelConfig* config);

// GGUF metadata under "<arch>.", tied head when there is no output.weight, vocabulary from the
// embedding's shape, RoPE, full attention in every layer.
absl::Status ReadGgufTransformer(const ConfigFields& fields, std::string_view arch,
                                 ModelConfig* config);

// True when the GGUF file holds `<name>.bias` in layer 0. GGUF metadata do not mention biases.
bool GgufHasBias(const ConfigFields& fields, std::string_view name);

}  // namespace tokenbutler
