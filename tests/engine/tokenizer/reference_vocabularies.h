#pragma once

#include <string>

#include "base/status.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// The vocabularies of real models in the formats their makers publish, as the specs that a GGUF
// file of the model holds. Test code: the files come from packages that scripts/setup checks.

// Llama 3's `tokenizer.model`: a line "base64 rank" for each token.
absl::StatusOr<TokenizerSpec> ReadTiktokenVocabulary(const std::string& path);

// Mistral's `tekken.json`.
absl::StatusOr<TokenizerSpec> ReadTekkenVocabulary(const std::string& path);

// A SentencePiece model (a protocol buffer): pieces, scores and types.
absl::StatusOr<TokenizerSpec> ReadSentencePieceVocabulary(const std::string& path);

// The spec of a real model's tokenizer by the name of its golden ids ("smollm2", "llama-3" ...),
// from the download cache. NOT_FOUND with a sentence on how to get its file when it is not there.
absl::StatusOr<TokenizerSpec> ReadReferenceSpec(const std::string& name);

}  // namespace tokenbutler
