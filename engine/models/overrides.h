#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/models/model_config.h"

namespace tokenbutler {

// What the person who starts the server may change about a model's context. Flags of the same
// names set them.
struct ModelOverrides {
  // --max-model-len: longest sequence in tokens; 0 keeps the model's effective context.
  int max_model_len = 0;
  // --rope-scaling: a JSON object that replaces the file's scaling, with the keys of config.json's
  // `rope_scaling`, as in vLLM; empty keeps the file's. Types: default, linear, llama3, yarn.
  //   {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
  std::string rope_scaling = {};
};

// Applies the overrides. The effective context, `config->max_position` afterwards, is
//   what the file declares                       without an override of the scaling,
//   original_max_position_embeddings * factor    when it is yarn (original: the file's if unset),
//   the file's max_position * factor             when it is linear,
//   the file's max_position (before a yarn of its own)  when it is default or llama3,
// and then max_model_len if one is given, which must not be larger: positions that RoPE was not
// scaled for give garbage, so running further than the file declares takes a --rope-scaling too.
// A file that itself asks for yarn declares max(max_position_embeddings, original * factor).
//
// INVALID_ARGUMENT naming flag, value and bound; UNIMPLEMENTED for an unknown or unsupported type.
absl::Status ApplyOverrides(const ModelOverrides& overrides, ModelConfig* config);

}  // namespace tokenbutler
