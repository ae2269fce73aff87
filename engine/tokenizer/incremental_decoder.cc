#include "engine/tokenizer/incremental_decoder.h"

#include <utility>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

std::string IncrementalDecoder::Push(int32_t id) {
  if (id < 0 || id >= tokenizer_->vocab_size()) return {};  // no token, and ends no byte run
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return {};
  if (tokenizer_->IsByteFallback(id)) {
    held_ += tokenizer_->TokenBytes(id);
    held_is_byte_run_ = true;
    return {};
  }
  std::string text = TakeByteRun();
  held_ += tokenizer_->TokenBytes(id);
  text += TakeWholeCharacters();
  return Emit(std::move(text));
}

std::string IncrementalDecoder::Finish() {
  std::string text = TakeByteRun();
  text += ReplaceIllFormedUtf8(std::exchange(held_, {}));
  return Emit(std::move(text));
}

std::string IncrementalDecoder::Emit(std::string text) {
  if (text.empty() || !std::exchange(at_start_, false)) return text;
  if (tokenizer_->strips_leading_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string IncrementalDecoder::TakeByteRun() {
  if (!std::exchange(held_is_byte_run_, false)) return {};
  std::string run = std::exchange(held_, {});
  if (IsWellFormedUtf8(run)) return run;
  std::string text;
  for (size_t i = 0; i < run.size(); ++i) AppendUtf8(0xFFFD, &text);
  return text;
}

// Everything held but a last sequence that further bytes could complete.
std::string IncrementalDecoder::TakeWholeCharacters() {
  std::string text;
  size_t i = 0;
  while (i < held_.size()) {
    const Utf8Char c = ReadUtf8(held_, i);
    if (c.truncated) break;
    AppendUtf8(c.code_point, &text);
    i += c.length;
  }
  held_.erase(0, i);
  return text;
}

}  // namespace tokenbutler
