#pragma once

#include <optional>

#include "base/status.h"
#include "engine/tokenizer/tokenizer_spec.h"
#include "engine/weights/gguf_model.h"

namespace tokenbutler {

// The tokenizer inside a GGUF file (tokenizer.ggml.*); nullopt when there is none. Sizes of the
// arrays, token types and ids are checked; what they mean is Tokenizer::Create's to judge.
// INVALID_ARGUMENT naming key, value and bound; UNIMPLEMENTED naming an unknown
// tokenizer.ggml.model.
absl::StatusOr<std::optional<TokenizerSpec>> ReadGgufTokenizer(const GgufModel& model,
                                                               int vocab_size);

}  // namespace tokenbutler
