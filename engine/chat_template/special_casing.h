#pragma once

namespace tokenbutler {

// A letter whose upper or title case is more than one code point ("ß", ligatures, some Greek).
struct SpecialCasing {
  char32_t code_point;
  const char32_t* upper;  // zero-terminated
  const char32_t* title;
};

// Null for all others.
const SpecialCasing* FindSpecialCasing(char32_t code_point);

}  // namespace tokenbutler
