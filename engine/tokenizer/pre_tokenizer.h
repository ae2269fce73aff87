#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// What `tokenizer.ggml.pre` stands for.
struct PreTokenizerRecipe {
  std::vector<PreTokenizerStep> steps;
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;  // unless the file says otherwise
};

// The recipe of a name that llama.cpp writes into GGUF files. UNIMPLEMENTED for any other.
absl::StatusOr<PreTokenizerRecipe> FindPreTokenizer(std::string_view ggml_name);

// The step whose regular expression is exactly `regex`. UNIMPLEMENTED naming the expression when it
// is not one of those below.
//   kGpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   kLlama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//            | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   kQwen2   as kLlama3 with \p{N} for \p{N}{1,3}
//   kTekken  [^\r\n\p{L}\p{N}]?U*W+|[^\r\n\p{L}\p{N}]?U+W*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
//            \s*[\r\n]+|\s+(?!\S)|\s+  with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and
//            W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]
absl::StatusOr<PreTokenizerStep> FindPreTokenizerStep(std::string_view regex);

// A stretch of text by code points, with their classes (unicode.h) looked up once.
// Reused between texts for its memory.
class CodePoints {
 public:
  // REQUIRES: well-formed UTF-8.
  void Assign(std::string_view text);

  int64_t size() const { return static_cast<int64_t>(code_points_.size()); }
  char32_t operator[](int64_t i) const { return code_points_[i]; }
  bool Is(int64_t i, uint8_t classes) const { return (classes_[i] & classes) != 0; }
  // Byte offset of code point `i`; of the end of the text for i == size().
  uint32_t ByteOffset(int64_t i) const { return byte_offsets_[i]; }

 private:
  std::vector<char32_t> code_points_;
  std::vector<uint8_t> classes_;
  std::vector<uint32_t> byte_offsets_;  // [size() + 1]
};

// Cuts `text` into pieces by `steps` and sets `ends` to the index one past each piece's last code
// point. The pieces cover the text. Linear in the text.
void PreTokenize(const CodePoints& text, absl::Span<const PreTokenizerStep> steps,
                 std::vector<int64_t>* ends);

}  // namespace tokenbutler
