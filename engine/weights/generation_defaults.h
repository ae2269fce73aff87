#pragma once

#include "base/status.h"
#include "engine/models/json_fields.h"
#include "engine/weights/gguf_model.h"
#include "engine/weights/loader.h"

namespace tokenbutler {

// generation_config.json or config.json: eos_token_id (one or several), bos_token_id, temperature,
// top_p, min_p, top_k, repetition_penalty. INVALID_ARGUMENT naming field, value and bound.
absl::StatusOr<GenerationDefaults> ReadHfGeneration(const JsonFields& fields, int vocab_size);

// GGUF: tokenizer.ggml.{bos,eos,eot,eom}_token_id, control tokens that by their name end a turn
// (as llama.cpp has it: "<|im_end|>", "<|eot_id|>" ...), and general.sampling.*.
absl::StatusOr<GenerationDefaults> ReadGgufGeneration(const GgufModel& model, int vocab_size);

}  // namespace tokenbutler
