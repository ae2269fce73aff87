#include "engine/tokenizer/sentencepiece_bpe.h"

#include <string>
#include <utility>

#include "engine/tokenizer/unicode.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

uint64_t JointKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string_view FirstCharacter(std::string_view token) {
  return token.substr(0, ReadUtf8(token, 0).length);
}

std::string_view LastCharacter(std::string_view token) {
  size_t begin = token.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(token[begin]) & 0xC0) == 0x80) --begin;
  return token.substr(begin);
}

}  // namespace

int ByteOfFallbackToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

absl::StatusOr<SentencePieceBpe> SentencePieceBpe::Create(const TokenizerSpec& spec) {
  SentencePieceBpe bpe;
  bpe.token_ids_ = IndexTokens(spec);
  if (spec.merges.empty()) {
    bpe.merges_ = BuildScoredMerges(spec, bpe.token_ids_);
  } else {
    ASSIGN_OR_RETURN(bpe.merges_, BuildListedMerges(spec, bpe.token_ids_));
  }
  for (int byte = 0; byte < 256; ++byte) {
    bpe.byte_ids_[byte] = FindToken(bpe.token_ids_, fmt::format("<0x{:02X}>", byte));
  }
  bpe.unk_id_ = spec.unk_id.value_or(-1);
  bpe.byte_fallback_ = spec.byte_fallback;
  bpe.fuse_unk_ = spec.fuse_unk;
  bpe.ignore_merges_ = spec.ignore_merges;
  bpe.FindJoints(spec);
  return bpe;
}

void SentencePieceBpe::FindJoints(const TokenizerSpec& spec) {
  may_cut_ = true;
  merges_.ForEach([&](int32_t left, int32_t right, const MergeTable::Merge&) {
    for (const int32_t id : {left, right}) {
      // Byte and unknown tokens are symbols of more than one character; where they merge, the
      // argument over characters below does not hold.
      if (id == unk_id_ || ByteOfFallbackToken(spec.tokens[id]) >= 0) may_cut_ = false;
    }
    if (spec.tokens[left].empty() || spec.tokens[right].empty()) {
      may_cut_ = false;
      return;
    }
    const int32_t last = FindToken(token_ids_, LastCharacter(spec.tokens[left]));
    const int32_t first = FindToken(token_ids_, FirstCharacter(spec.tokens[right]));
    if (last >= 0 && first >= 0) joints_.insert(JointKey(last, first));
  });
}

bool SentencePieceBpe::HasByteTokens(std::string_view character) const {
  if (!byte_fallback_) return false;
  for (const char c : character) {
    if (byte_ids_[static_cast<uint8_t>(c)] < 0) return false;
  }
  return true;
}

void SentencePieceBpe::Encode(std::string_view text, BpeMerger* merger,
                              std::vector<int32_t>* symbols, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    if (const int32_t id = FindToken(token_ids_, text); id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  symbols->clear();
  bool pending_unk = false;  // Hugging Face adds an unknown token when the next known one comes
  const auto add = [&](int32_t id) {
    if (may_cut_ && !symbols->empty() && !joints_.contains(JointKey(symbols->back(), id))) {
      merger->Merge(*symbols, ids);
      symbols->clear();
    }
    symbols->push_back(id);
  };
  for (size_t i = 0; i < text.size();) {
    const int length = ReadUtf8(text, i).length;
    const std::string_view character = text.substr(i, length);
    i += length;
    if (const int32_t id = FindToken(token_ids_, character); id >= 0) {
      if (std::exchange(pending_unk, false)) add(unk_id_);
      add(id);
      continue;
    }
    if (HasByteTokens(character)) {
      for (const char c : character) add(byte_ids_[static_cast<uint8_t>(c)]);
      continue;
    }
    if (unk_id_ < 0) continue;
    if (pending_unk && !fuse_unk_) add(unk_id_);
    pending_unk = true;
  }
  if (pending_unk) add(unk_id_);
  merger->Merge(*symbols, ids);
}

}  // namespace tokenbutler
