#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/byte_level_bpe.h"
#include "engine/tokenizer/sentencepiece_bpe.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// Fills in what a spec leaves to defaults (the recipe of its pre-tokenizer's name, added tokens of
// its token types, BOS and EOS around a text) and checks that all of it fits together: sizes, ids,
// UTF-8, scores. Afterwards added_tokens, prefix_ids and suffix_ids are set.
// Errors as Tokenizer::Create.
absl::Status CompleteTokenizerSpec(TokenizerSpec* spec);

// The tokenizer that Tokenizer::Create builds: added tokens are cut out of the text, the rest is
// normalised, cut into pre-tokens and encoded by one of the two byte-pair encodings.
class BpeTokenizer final : public Tokenizer {
 public:
  // `spec` has gone through CompleteTokenizerSpec.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Build(TokenizerSpec spec);

  std::vector<int32_t> Encode(std::string_view text, EncodeOptions options) const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override;
  std::string_view TokenBytes(int32_t id) const override {
    return IsKnown(id) ? std::string_view(token_bytes_[id]) : std::string_view();
  }
  bool IsSpecial(int32_t id) const override { return IsKnown(id) && special_[id]; }
  bool IsByteFallback(int32_t id) const override { return IsKnown(id) && byte_fallback_[id]; }
  int vocab_size() const override { return static_cast<int>(token_bytes_.size()); }
  std::optional<int32_t> bos_id() const override { return spec_.bos_id; }
  absl::Span<const int32_t> eos_ids() const override { return eos_ids_; }
  bool strips_leading_space() const override { return strips_leading_space_; }

 private:
  struct Workspace;  // memory of one Encode call
  using Spans = std::vector<std::pair<size_t, size_t>>;

  explicit BpeTokenizer(TokenizerSpec spec);
  bool IsKnown(int32_t id) const { return id >= 0 && id < vocab_size(); }
  void CollectEosIds();
  void EncodeSection(std::string_view section, size_t offset, Workspace* workspace) const;
  void EncodePiece(std::string_view piece, bool at_start, Workspace* workspace) const;
  std::string Normalize(std::string_view section, bool at_section_start) const;
  Spans NormalizedSpans(std::string_view section, size_t offset, const Spans& spans) const;

  const TokenizerSpec spec_;
  std::vector<std::string> token_bytes_;  // id -> TokenBytes
  std::vector<bool> special_;             // id -> control token
  std::vector<bool> byte_fallback_;       // id -> "<0xNN>" of SentencePiece
  std::vector<int32_t> eos_ids_;
  bool strips_leading_space_ = false;
  AddedTokenMatcher original_matcher_;    // added tokens found in the text as it came
  AddedTokenMatcher normalized_matcher_;  // and those found after normalisation
  bool has_special_normalized_ = false;
  std::optional<ByteLevelBpe> byte_level_;  // one of the two is set
  std::optional<SentencePieceBpe> sentence_piece_;
};

}  // namespace tokenbutler
