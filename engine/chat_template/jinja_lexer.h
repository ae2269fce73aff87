#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

struct JinjaToken {
  enum class Kind {
    kText,        // template data, white space control applied
    kPrintBegin,  // {{
    kPrintEnd,
    kTagBegin,  // {%
    kTagEnd,
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// Splits a template into tokens with trim_blocks and lstrip_blocks on, as jinja2.lexer does:
// a newline after a tag goes, so does white space between the start of a line and a tag; "-" and
// "+" in tags override. INVALID_ARGUMENT naming the line.
absl::StatusOr<std::vector<JinjaToken>> LexJinja(std::string_view source);

}  // namespace tokenbutler
