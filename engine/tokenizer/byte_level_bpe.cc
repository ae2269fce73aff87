#include "engine/tokenizer/byte_level_bpe.h"

#include <utility>

#include "engine/tokenizer/bpe_vocabulary.h"
#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

// Bytes that stand for themselves in GPT-2's alphabet; the others are U+0100, U+0101 ... in order.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> MakeAlphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[byte] = IsPrintable(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return alphabet;
}

constexpr std::array<char32_t, 256> kAlphabet = MakeAlphabet();
constexpr int kAlphabetEnd = 0x144;

// Character of the alphabet -> byte, or -1.
constexpr std::array<int, kAlphabetEnd> MakeInverse() {
  std::array<int, kAlphabetEnd> inverse{};
  for (int& byte : inverse) byte = -1;
  for (int byte = 0; byte < 256; ++byte) inverse[kAlphabet[byte]] = byte;
  return inverse;
}

constexpr std::array<int, kAlphabetEnd> kByteOf = MakeInverse();

int ByteOfCharacter(char32_t c) { return c < kAlphabetEnd ? kByteOf[c] : -1; }

bool IsInAlphabet(std::string_view token) {
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = ReadUtf8(token, i);
    if (ByteOfCharacter(c.code_point) < 0) return false;
    i += c.length;
  }
  return true;
}

}  // namespace

std::string BytesOfByteLevelToken(std::string_view token) {
  if (!IsInAlphabet(token)) return std::string(token);
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = ReadUtf8(token, i);
    bytes.push_back(static_cast<char>(ByteOfCharacter(c.code_point)));
    i += c.length;
  }
  return bytes;
}

absl::StatusOr<ByteLevelBpe> ByteLevelBpe::Create(const TokenizerSpec& spec,
                                                  const std::vector<std::string>& token_bytes) {
  ByteLevelBpe bpe;
  const TokenIds ids = IndexTokens(spec);
  ASSIGN_OR_RETURN(bpe.merges_, BuildListedMerges(spec, ids));
  const int32_t stand_in = spec.byte_level_unk && spec.unk_id.has_value() ? *spec.unk_id : -1;
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    AppendUtf8(kAlphabet[byte], &character);
    const int32_t id = FindToken(ids, character);
    bpe.byte_ids_[byte] = id >= 0 ? id : stand_in;
  }
  if (spec.ignore_merges) {
    bpe.whole_words_.reserve(token_bytes.size());
    for (size_t id = 0; id < token_bytes.size(); ++id) {
      const bool normal =
          spec.token_types.empty() || spec.token_types[id] == TokenizerSpec::TokenType::kNormal;
      // A token outside the alphabet is never the text of a pre-token.
      if (normal && IsInAlphabet(spec.tokens[id])) {
        bpe.whole_words_[token_bytes[id]] = static_cast<int32_t>(id);
      }
    }
  }
  return bpe;
}

void ByteLevelBpe::EncodeWord(std::string_view word, BpeMerger* merger,
                              std::vector<int32_t>* symbols, std::vector<int32_t>* ids) const {
  if (!whole_words_.empty()) {
    if (const auto it = whole_words_.find(word); it != whole_words_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  symbols->clear();
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) symbols->push_back(id);
  }
  merger->Merge(*symbols, ids);
}

}  // namespace tokenbutler
