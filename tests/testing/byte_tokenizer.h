#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

// One token per byte; 256 is BOS, 257 is EOS.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int kVocabSize = 258;
  static constexpr int32_t kBos = 256;
  static constexpr int32_t kEos = 257;

  std::vector<int32_t> Encode(std::string_view text, EncodeOptions options) const override {
    std::vector<int32_t> ids;
    if (options.add_special_tokens) ids.push_back(kBos);
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!skip_special_tokens || !IsSpecial(id)) text += TokenBytes(id);
    }
    return text;
  }
  std::string_view TokenBytes(int32_t id) const override {
    static const std::string* const kBytes = [] {
      auto* bytes = new std::string;
      for (int i = 0; i < 256; ++i) bytes->push_back(static_cast<char>(i));
      return bytes;
    }();
    if (id == kBos) return "<s>";
    if (id == kEos) return "</s>";
    return std::string_view(*kBytes).substr(static_cast<size_t>(id), 1);
  }
  bool IsSpecial(int32_t id) const override { return id >= kBos; }
  int vocab_size() const override { return kVocabSize; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  absl::Span<const int32_t> eos_ids() const override { return eos_ids_; }
  bool strips_leading_space() const override { return false; }

 private:
  std::vector<int32_t> eos_ids_ = {kEos};
};

}  // namespace tokenbutler
