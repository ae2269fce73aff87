#pragma once

#include <cstddef>
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

// GoogleTest checks that every tokenizer with golden ids has to pass.

// Encodes every string of NAME.ids, at least `min_strings`, and decodes every id sequence, as
// Hugging Face did.
void ExpectEqualsHuggingFace(const Tokenizer& tokenizer, const std::string& name,
                             size_t min_strings);

// Pushes random, real and golden id sequences through IncrementalDecoder: well-formed pieces that
// concatenate to Decode.
void ExpectStreamsLikeDecode(const Tokenizer& tokenizer, const std::string& name);

}  // namespace tokenbutler
