#include "engine/tokenizer/incremental_decoder.h"

#include <utility>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

std::string_view IncrementalDecoder::Push(int32_t id) {
  if (id < 0 || id >= tokenizer_->vocab_size()) return {};  // no token, and ends no byte run
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return {};
  if (tokenizer_->IsByteFallback(id)) {
    held_ += tokenizer_->TokenBytes(id);
    held_is_byte_run_ = true;
    return {};
  }
  text_.clear();
  TakeByteRun();
  held_ += tokenizer_->TokenBytes(id);
  TakeWholeCharacters();
  return Emit();
}

std::string_view IncrementalDecoder::Finish() {
  text_.clear();
  TakeByteRun();
  text_ += ReplaceIllFormedUtf8(std::exchange(held_, {}));
  return Emit();
}

std::string_view IncrementalDecoder::Emit() {
  std::string_view text = text_;
  if (text.empty() || !std::exchange(at_start_, false)) return text;
  if (tokenizer_->strips_leading_space() && text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

void IncrementalDecoder::TakeByteRun() {
  if (!std::exchange(held_is_byte_run_, false)) return;
  if (IsWellFormedUtf8(held_)) {
    text_ += held_;
  } else {
    for (size_t i = 0; i < held_.size(); ++i) AppendUtf8(0xFFFD, &text_);
  }
  held_.clear();
}

// Everything held but a last sequence that further bytes could complete.
void IncrementalDecoder::TakeWholeCharacters() {
  size_t i = 0;
  while (i < held_.size()) {
    const Utf8Char c = ReadUtf8(held_, i);
    if (c.truncated) break;
    AppendUtf8(c.code_point, &text_);
    i += c.length;
  }
  held_.erase(0, i);
}

}  // namespace tokenbutler
