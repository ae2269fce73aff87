#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

// A text of a given size that some part of a tokenizer could be slow on.
struct HardText {
  std::string name;
  std::string text;
};

// Texts of `num_bytes` each: prose, one letter, one word of random letters, spaces, marks to
// reorder, digits, beginnings of control tokens ...
std::vector<HardText> MakeHardTexts(size_t num_bytes);

// CPU seconds of this thread for Encode: the least of three runs, fewer when one was faster than
// `enough` already.
double EncodeSeconds(const Tokenizer& tokenizer, std::string_view text, double enough);

}  // namespace tokenbutler
