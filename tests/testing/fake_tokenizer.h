#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "fmt/format.h"

namespace tokenbutler {

// A tokenizer small enough to reason about. Token 0 is the special "<eos>", 1..26 are "a".."z",
// 27 is a space, 28 and 29 are the two bytes of "é", 30 is "stop", the rest are "[id]".
class FakeTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEos = 0, kSpace = 27, kAcuteFirst = 28, kAcuteSecond = 29, kStop = 30;
  static constexpr int kVocabSize = 64;

  FakeTokenizer() {
    for (int32_t id = 0; id < kVocabSize; ++id) {
      if (id == kEos) {
        bytes_.emplace_back("<eos>");
      } else if (id <= 26) {
        bytes_.emplace_back(1, static_cast<char>('a' + id - 1));
      } else if (id == kSpace) {
        bytes_.emplace_back(" ");
      } else if (id == kAcuteFirst) {
        bytes_.emplace_back("\xC3");
      } else if (id == kAcuteSecond) {
        bytes_.emplace_back("\xA9");
      } else if (id == kStop) {
        bytes_.emplace_back("stop");
      } else {
        bytes_.push_back(fmt::format("[{}]", id));
      }
    }
  }

  // Letters and spaces one by one; everything else is left out.
  std::vector<int32_t> Encode(std::string_view text, EncodeOptions) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      if (c >= 'a' && c <= 'z') ids.push_back(c - 'a' + 1);
      if (c == ' ') ids.push_back(kSpace);
    }
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override {
    std::string text;
    bool half = false;  // the first byte of "é" has come, not yet the second
    for (const int32_t id : ids) {
      if (skip_special_tokens && IsSpecial(id)) continue;
      if (half != (id == kAcuteSecond)) text += "\uFFFD";
      if (id == kAcuteSecond && half) text += "é";
      half = id == kAcuteFirst;
      if (id != kAcuteFirst && id != kAcuteSecond) text += bytes_[id];
    }
    if (half) text += "\uFFFD";
    return text;
  }
  std::string_view TokenBytes(int32_t id) const override { return bytes_[id]; }
  bool IsSpecial(int32_t id) const override { return id == kEos; }
  int vocab_size() const override { return kVocabSize; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  absl::Span<const int32_t> eos_ids() const override { return eos_ids_; }
  bool strips_leading_space() const override { return false; }

 private:
  std::vector<std::string> bytes_;
  const std::vector<int32_t> eos_ids_ = {kEos};
};

}  // namespace tokenbutler
