#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tokenbutler {

// Python's view of text: code points, its white space, its case mappings.
// All functions take well-formed UTF-8 and treat a stray byte as a code point of its own.

// Bytes of the code point that begins at `at`. REQUIRES: at < text.size().
size_t Utf8LengthAt(std::string_view text, size_t at);
// Bytes of the code point that ends at `end`. REQUIRES: 0 < end <= text.size().
size_t Utf8LengthBefore(std::string_view text, size_t end);
char32_t CodePointAt(std::string_view text, size_t at);
void AppendCodePoint(char32_t code_point, std::string* out);
int64_t CountCodePoints(std::string_view text);
// Byte offset of the code point `index`; text.size() when there are fewer.
size_t OffsetOfCodePoint(std::string_view text, int64_t index);

// str.isspace, as str.strip() and str.split() see it.
bool IsPythonSpace(char32_t code_point);
// Where str.splitlines() ends a line ("\r\n" is the caller's business).
bool IsPythonLineBreak(char32_t code_point);
bool IsAlphabetic(char32_t code_point);      // str.isalpha: categories L*
bool IsDecimal(char32_t code_point);         // str.isdecimal: category Nd
int DecimalValue(char32_t code_point);       // 0 to 9. REQUIRES: IsDecimal(code_point).
bool IsNumeric(char32_t code_point);         // str.isnumeric: categories N*
bool IsDigitCharacter(char32_t code_point);  // str.isdigit: decimals, super- and subscripts ...
bool IsUppercase(char32_t code_point);
bool IsLowercase(char32_t code_point);
bool IsTitlecase(char32_t code_point);
inline bool IsCased(char32_t c) { return IsUppercase(c) || IsLowercase(c) || IsTitlecase(c); }
// What repr() shows as it is.
bool IsPrintable(char32_t code_point);

// The full mapping of one code point, up to three ("ß" -> "SS").
void AppendUpper(char32_t code_point, std::string* out);
void AppendTitle(char32_t code_point, std::string* out);
// `text` and `at` decide what a capital sigma becomes at the end of a word.
void AppendLower(std::string_view text, size_t at, std::string* out);

std::string PythonUpper(std::string_view text);
std::string PythonLower(std::string_view text);
std::string PythonTitle(std::string_view text);
std::string PythonCapitalize(std::string_view text);
std::string PythonSwapCase(std::string_view text);
std::string PythonCaseFold(std::string_view text);

}  // namespace tokenbutler
