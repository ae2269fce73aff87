#include "engine/chat_template/jinja_unicode.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "engine/chat_template/special_casing.h"
#include "utf8proc.h"

namespace tokenbutler {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kSmallSigma = 0x3C3;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kCapitalIWithDot = 0x130;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

utf8proc_category_t CategoryOf(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

void AppendAll(const char32_t* code_points, std::string* out) {
  for (; *code_points != 0; ++code_points) AppendCodePoint(*code_points, out);
}

// Signs inside words that the rule for a final sigma looks through.
bool IsCaseIgnorable(char32_t c) {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  constexpr char32_t kMidLetters[] = {'\'',   '.',    ':',    0xB7,   0x387,  0x55F,
                                      0x5F4,  0x2018, 0x2019, 0x2024, 0x2027, 0xFE13,
                                      0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(std::begin(kMidLetters), std::end(kMidLetters), c) != std::end(kMidLetters);
}

bool EndsWord(std::string_view text, size_t at) {
  bool cased_before = false;
  for (size_t end = at; end > 0;) {
    end -= Utf8LengthBefore(text, end);
    const char32_t c = CodePointAt(text, end);
    if (IsCaseIgnorable(c)) continue;
    cased_before = IsCased(c);
    break;
  }
  if (!cased_before) return false;
  for (size_t next = at + Utf8LengthAt(text, at); next < text.size();
       next += Utf8LengthAt(text, next)) {
    const char32_t c = CodePointAt(text, next);
    if (!IsCaseIgnorable(c)) return !IsCased(c);
  }
  return true;
}

}  // namespace

size_t Utf8LengthAt(std::string_view text, size_t at) {
  size_t length = 1;
  while (length < 4 && at + length < text.size() && IsContinuation(text[at + length])) ++length;
  return length;
}

size_t Utf8LengthBefore(std::string_view text, size_t end) {
  size_t length = 1;
  while (length < 4 && length < end && IsContinuation(text[end - length])) ++length;
  return length;
}

char32_t CodePointAt(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return lead;
  utf8proc_int32_t code_point = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  if (utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &code_point) < 0) {
    return 0xFFFD;
  }
  return static_cast<char32_t>(code_point);
}

void AppendCodePoint(char32_t code_point, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out->append(reinterpret_cast<const char*>(bytes), length);
}

int64_t CountCodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); });
}

size_t OffsetOfCodePoint(std::string_view text, int64_t index) {
  size_t offset = 0;
  for (; index > 0 && offset < text.size(); --index) offset += Utf8LengthAt(text, offset);
  return offset;
}

bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsPythonLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsAlphabetic(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsDecimal(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_ND; }
int DecimalValue(char32_t c) {
  // Unicode lays decimal digits out in runs from zero to nine, some next to each other.
  int before = 0;
  while (IsDecimal(c - before - 1)) ++before;
  return before % 10;
}
bool IsNumeric(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool IsDigitCharacter(char32_t c) {
  return IsDecimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) ||
         (c >= 0x2488 && c <= 0x2490);
}
bool IsUppercase(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_LU; }
bool IsLowercase(char32_t c) {
  return CategoryOf(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA;
}
bool IsTitlecase(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_LT; }

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendUpper(char32_t c, std::string* out) {
  if (const SpecialCasing* special = FindSpecialCasing(c)) return AppendAll(special->upper, out);
  AppendCodePoint(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)), out);
}

void AppendTitle(char32_t c, std::string* out) {
  if (const SpecialCasing* special = FindSpecialCasing(c)) return AppendAll(special->title, out);
  AppendCodePoint(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)), out);
}

void AppendLower(std::string_view text, size_t at, std::string* out) {
  const char32_t c = CodePointAt(text, at);
  if (c == kCapitalSigma) {
    AppendCodePoint(EndsWord(text, at) ? kFinalSigma : kSmallSigma, out);
  } else if (c == kCapitalIWithDot) {
    out->append("i\xCC\x87");  // i and a combining dot above
  } else {
    AppendCodePoint(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)), out);
  }
}

std::string PythonUpper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) {
    AppendUpper(CodePointAt(text, at), &out);
  }
  return out;
}

std::string PythonLower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) AppendLower(text, at, &out);
  return out;
}

std::string PythonTitle(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool previous_is_cased = false;
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) {
    const char32_t c = CodePointAt(text, at);
    if (previous_is_cased) {
      AppendLower(text, at, &out);
    } else {
      AppendTitle(c, &out);
    }
    previous_is_cased = IsCased(c);
  }
  return out;
}

std::string PythonCapitalize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) {
    if (at == 0) {
      AppendTitle(CodePointAt(text, at), &out);
    } else {
      AppendLower(text, at, &out);
    }
  }
  return out;
}

std::string PythonSwapCase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) {
    const char32_t c = CodePointAt(text, at);
    if (IsUppercase(c)) {
      AppendLower(text, at, &out);
    } else if (IsLowercase(c)) {
      AppendUpper(c, &out);
    } else {
      AppendCodePoint(c, &out);
    }
  }
  return out;
}

std::string PythonCaseFold(std::string_view text) {
  utf8proc_uint8_t* folded = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &folded, UTF8PROC_CASEFOLD);
  if (length < 0) return std::string(text);
  std::string out(reinterpret_cast<const char*>(folded), length);
  std::free(folded);
  return out;
}

}  // namespace tokenbutler
