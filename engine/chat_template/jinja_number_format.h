#pragma once

#include <cstdint>
#include <string>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// How a value is laid out by `%` or by str.format's specification.
struct JinjaFormatSpec {
  char32_t fill = U' ';
  char align = '\0';       // < > ^ =, 0: the type's own
  char sign = '-';         // '-': only when negative, '+', ' '
  bool alternate = false;  // 0x before hexadecimal and the like
  bool grouping = false;   // thousands: 1,000
  int width = 0;
  int precision = -1;  // unset
  char type = '\0';    // d x X o b c e E f F g G % s, 0: the value's own
};

// Bounds on width and precision; beyond them a template asks for nonsense.
inline constexpr int kMaxJinjaFormatWidth = 10'000;

// Digits with sign of a number in the type of `spec` (one of those above but s and c), not padded.
// INVALID_ARGUMENT when the value is no number or does not go with the type.
absl::StatusOr<std::string> FormatJinjaNumber(const JinjaValue& value, const JinjaFormatSpec& spec);

// Adds `body` with the spec's width, fill and alignment (`missing` when it names none) to `out`.
void PadJinjaText(const JinjaText& body, const JinjaFormatSpec& spec, char missing_align,
                  JinjaTextBuilder* out);

}  // namespace tokenbutler
