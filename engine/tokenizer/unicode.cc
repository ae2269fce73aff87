#include "engine/tokenizer/unicode.h"

#include <algorithm>
#include <vector>

namespace tokenbutler {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr size_t kNumCodePoints = 0x110000;

std::vector<uint8_t> ExpandClasses() {
  std::vector<uint8_t> classes(kNumCodePoints);
  for (size_t i = 0; i < kCodePointClassRanges.size(); ++i) {
    const size_t begin = kCodePointClassRanges[i] >> 8;
    const size_t end =
        i + 1 < kCodePointClassRanges.size() ? kCodePointClassRanges[i + 1] >> 8 : kNumCodePoints;
    std::fill(classes.begin() + begin, classes.begin() + end,
              static_cast<uint8_t>(kCodePointClassRanges[i] & 0xFF));
  }
  return classes;
}

// The allowed second bytes after a lead byte, and how many continuation bytes follow it in all.
struct LeadByte {
  int num_continuations = -1;  // -1: never begins a sequence
  uint8_t min_second = 0x80, max_second = 0xBF;
};

LeadByte Classify(uint8_t lead) {
  if (lead < 0xC2) return {};  // ASCII is handled before; C0 and C1 would be overlong
  if (lead < 0xE0) return {.num_continuations = 1};
  if (lead == 0xE0) return {.num_continuations = 2, .min_second = 0xA0};
  if (lead == 0xED) return {.num_continuations = 2, .max_second = 0x9F};  // no surrogates
  if (lead < 0xF0) return {.num_continuations = 2};
  if (lead == 0xF0) return {.num_continuations = 3, .min_second = 0x90};
  if (lead < 0xF4) return {.num_continuations = 3};
  if (lead == 0xF4) return {.num_continuations = 3, .max_second = 0x8F};
  return {};
}

}  // namespace

uint8_t ClassesOf(char32_t code_point) {
  static const std::vector<uint8_t>& classes = *new std::vector<uint8_t>(ExpandClasses());
  return classes[code_point];
}

Utf8Char ReadUtf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(position);
  if (lead < 0x80) return {.code_point = lead, .length = 1};
  const LeadByte form = Classify(lead);
  if (form.num_continuations < 0) {
    return {.code_point = kReplacement, .length = 1, .well_formed = false};
  }
  char32_t code_point = lead & (0x3F >> form.num_continuations);
  for (int i = 1; i <= form.num_continuations; ++i) {
    const bool at_end = position + i >= text.size();
    const uint8_t low = i == 1 ? form.min_second : 0x80;
    const uint8_t high = i == 1 ? form.max_second : 0xBF;
    if (at_end || byte(position + i) < low || byte(position + i) > high) {
      return {.code_point = kReplacement, .length = i, .well_formed = false, .truncated = at_end};
    }
    code_point = code_point << 6 | (byte(position + i) & 0x3F);
  }
  return {.code_point = code_point, .length = form.num_continuations + 1};
}

bool IsWellFormedUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = ReadUtf8(text, i);
    if (!c.well_formed) return false;
    i += c.length;
  }
  return true;
}

std::string ReplaceIllFormedUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = ReadUtf8(text, i);
    if (c.well_formed) {
      result.append(text.substr(i, c.length));
    } else {
      AppendUtf8(kReplacement, &result);
    }
    i += c.length;
  }
  return result;
}

void AppendUtf8(char32_t c, std::string* text) {
  const auto continuation = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (c < 0x80) {
    text->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    text->push_back(static_cast<char>(0xC0 | c >> 6));
    text->push_back(continuation(c));
  } else if (c < 0x10000) {
    text->push_back(static_cast<char>(0xE0 | c >> 12));
    text->push_back(continuation(c >> 6));
    text->push_back(continuation(c));
  } else {
    text->push_back(static_cast<char>(0xF0 | c >> 18));
    text->push_back(continuation(c >> 12));
    text->push_back(continuation(c >> 6));
    text->push_back(continuation(c));
  }
}

}  // namespace tokenbutler
