#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "engine/tokenizer/bpe_merge.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// Token -> id. The keys are views of the spec's tokens; of equal tokens the last one counts.
using TokenIds = std::unordered_map<std::string_view, int32_t>;

TokenIds IndexTokens(const TokenizerSpec& spec);

// The id of `token`, or -1.
int32_t FindToken(const TokenIds& ids, std::string_view token);

// Merges as the spec lists them. INVALID_ARGUMENT naming the entry that is not two tokens whose
// concatenation is a token.
absl::StatusOr<MergeTable> BuildListedMerges(const TokenizerSpec& spec, const TokenIds& ids);

// Merges of a SentencePiece vocabulary without a list: every way to cut a token into two tokens,
// ranked by the token's score. Ties are broken as Hugging Face's converter does (the longer left
// part first, by code points), so that the ids agree. REQUIRES: scores.size() == tokens.size().
MergeTable BuildScoredMerges(const TokenizerSpec& spec, const TokenIds& ids);

}  // namespace tokenbutler
