#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "engine/tokenizer/bpe_merge.h"
#include "engine/tokenizer/bpe_vocabulary.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// The byte NN that a token "<0xNN>" stands for, or -1 for any other token.
int ByteOfFallbackToken(std::string_view token);

// Byte-pair encoding over code points with byte fallback (Llama 2, Mistral): a stretch of text, its
// spaces already "▁", to ids. Immutable.
class SentencePieceBpe {
 public:
  // The spec must outlive the result (not moved: tokens are viewed). Errors are those of
  // BuildListedMerges.
  static absl::StatusOr<SentencePieceBpe> Create(const TokenizerSpec& spec);

  const MergeTable& merges() const { return merges_; }

  // Appends the ids of `text`. `symbols` is working memory. REQUIRES: well-formed UTF-8.
  void Encode(std::string_view text, BpeMerger* merger, std::vector<int32_t>* symbols,
              std::vector<int32_t>* ids) const;

 private:
  SentencePieceBpe() = default;
  void FindJoints(const TokenizerSpec& spec);
  bool HasByteTokens(std::string_view character) const;

  TokenIds token_ids_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;  // id of "<0xNN>" or -1
  int32_t unk_id_ = -1;                // -1: unknown characters are left out
  bool byte_fallback_ = true;
  bool fuse_unk_ = true;
  bool ignore_merges_ = false;
  // Pairs of neighbouring symbols over which some merge reaches. Everywhere else a text can be cut
  // without changing the result, which keeps words short (a whole text is one "word" here).
  absl::flat_hash_set<uint64_t> joints_;
  bool may_cut_ = false;
};

}  // namespace tokenbutler
