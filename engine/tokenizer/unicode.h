#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tokenbutler {

// What a code point is to Hugging Face's tokenizers: bits of ClassesOf().
enum CodePointClass : uint8_t {
  kLetterClass = 1,      // \p{L} of a pre-tokenizer's regular expression
  kNumberClass = 2,      // \p{N}
  kSpaceClass = 4,       // \s; also what added tokens with lstrip or rstrip swallow
  kUpperLikeClass = 8,   // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLowerLikeClass = 16,  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  kDigitClass = 32,      // what the Digits pre-tokenizer splits off
  kWordClass = 64,       // \w for added tokens with single_word
};

uint8_t ClassesOf(char32_t code_point);

// One code point of a text. Ill-formed input reads as U+FFFD for each maximal subpart of a sequence
// (Unicode 15, §3.9, table 3-8; so do Rust's from_utf8_lossy and Python's errors="replace").
struct Utf8Char {
  char32_t code_point = 0;
  int length = 0;           // bytes consumed, at least 1
  bool well_formed = true;  // false: `code_point` is U+FFFD in place of `length` bytes
  bool truncated = false;   // ill-formed only because the text ends: more bytes could complete it
};

// REQUIRES: position < text.size().
Utf8Char ReadUtf8(std::string_view text, size_t position);

bool IsWellFormedUtf8(std::string_view text);

// `text` with every ill-formed sequence replaced by U+FFFD.
std::string ReplaceIllFormedUtf8(std::string_view text);

// REQUIRES: code_point is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* text);

// Canonical composition exactly as Hugging Face's NFC normaliser does it: its Unicode data are
// older than ours, so marks that came later stay where they are. n log n in runs of combining
// marks, linear otherwise. REQUIRES: well-formed UTF-8.
std::string ToNfc(std::string_view text);

// The data behind ClassesOf: `first code point << 8 | classes`, ascending; a range ends where the
// next begins. Generated (unicode_tables.cc).
extern const std::array<uint32_t, 3227> kCodePointClassRanges;
// Code points that ToNfc takes for inert although utf8proc decomposes, reorders or composes them.
extern const std::array<char32_t, 111> kNfcBoundaries;

}  // namespace tokenbutler
