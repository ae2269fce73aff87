#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "engine/models/config_fields.h"
#include "engine/models/model_config.h"

namespace tokenbutler {

// A RoPE scaling as an object with Hugging Face's keys: rope_type (or type), factor,
// original_max_position_embeddings, low_freq_factor ... under `prefix` ("rope_scaling.", or "" when
// the fields are the object's own). Fills all of *rope but theta and frequency_factors.
// `declared_max_position` is the original context where yarn or llama3 do not say it.
//
// UNIMPLEMENTED naming the type when it is not default, linear, llama3 or yarn.
absl::Status ReadRopeScaling(const ConfigFields& fields, std::string_view prefix,
                             int declared_max_position, RopeConfig* rope);

// config.json: `rope_theta` and `rope_scaling`, or transformers 5's `rope_parameters` with both.
// Sets config->rope, and raises config->max_position to what yarn extends it to.
absl::Status ReadHfRope(const ConfigFields& fields, ModelConfig* config);

// GGUF: `<arch>.rope.freq_base`, `<arch>.rope.scaling.*` as llama.cpp reads them, and the tensor
// rope_freqs.weight, which is how a llama3 scaling is stored. The same effects as ReadHfRope.
absl::Status ReadGgufRope(const ConfigFields& fields, std::string_view arch, ModelConfig* config);

}  // namespace tokenbutler
