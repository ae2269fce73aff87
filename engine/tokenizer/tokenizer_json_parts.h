#pragma once

#include "base/status.h"
#include "engine/tokenizer/json_field.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// The parts of tokenizer.json around the model; used by ParseTokenizerJson, whose errors they have.

// `normalizer` and `pre_tokenizer`. Sets the kind, nfc, pre_tokenizer_steps, add_space_prefix and
// space_prefix.
absl::Status ReadTextSteps(const JsonField& document, TokenizerSpec* spec);

// `decoder`. Sets strips_leading_space. REQUIRES: the kind is set.
absl::Status ReadDecoder(const JsonField& document, TokenizerSpec* spec);

// `post_processor`. Sets prefix_ids and suffix_ids. REQUIRES: the tokens are set.
absl::Status ReadPostProcessor(const JsonField& document, TokenizerSpec* spec);

}  // namespace tokenbutler
