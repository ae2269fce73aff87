#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

// Below it nothing decomposes to or composes with anything in a text that has no combining marks.
constexpr char32_t kFirstCombiningMark = 0x300;

bool IsBoundary(char32_t c) {
  return std::binary_search(kNfcBoundaries.begin(), kNfcBoundaries.end(), c);
}

int CombiningClass(int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Appends the canonical decomposition of `c`, marks not yet in order.
void AppendDecomposition(char32_t c, std::vector<int32_t>* buffer) {
  std::array<utf8proc_int32_t, 32> decomposed;
  int boundary_class = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), decomposed.data(),
                              decomposed.size(), UTF8PROC_DECOMPOSE, &boundary_class);
  if (n <= 0 || n > static_cast<utf8proc_ssize_t>(decomposed.size())) {
    buffer->push_back(static_cast<int32_t>(c));
    return;
  }
  buffer->insert(buffer->end(), decomposed.begin(), decomposed.begin() + n);
}

// The canonical ordering. utf8proc's own is quadratic in a run of marks, which anybody can send.
void SortMarks(std::vector<int32_t>* buffer) {
  const auto is_starter = [](int32_t c) { return CombiningClass(c) == 0; };
  for (auto begin = buffer->begin(); begin != buffer->end();) {
    begin = std::find_if_not(begin, buffer->end(), is_starter);
    const auto end = std::find_if(begin, buffer->end(), is_starter);
    std::stable_sort(begin, end,
                     [](int32_t a, int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

// Appends the composed form of `buffer` to `result` and empties it.
void Flush(std::vector<int32_t>* buffer, std::string* result) {
  if (buffer->empty()) return;
  SortMarks(buffer);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(buffer->data(), static_cast<utf8proc_ssize_t>(buffer->size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    AppendUtf8(static_cast<char32_t>((*buffer)[i]), result);
  }
  buffer->clear();
}

}  // namespace

std::string ToNfc(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  std::vector<int32_t> buffer;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = ReadUtf8(text, i);
    const size_t next = i + c.length;
    // A character below the marks is final unless a mark follows it.
    const bool plain =
        c.code_point < kFirstCombiningMark &&
        (next == text.size() || ReadUtf8(text, next).code_point < kFirstCombiningMark);
    if (plain || IsBoundary(c.code_point)) {
      Flush(&buffer, &result);
      result.append(text.substr(i, c.length));
    } else {
      AppendDecomposition(c.code_point, &buffer);
    }
    i = next;
  }
  Flush(&buffer, &result);
  return result;
}

}  // namespace tokenbutler
