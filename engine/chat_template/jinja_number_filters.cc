#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_split.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

using Pointers = std::vector<const JinjaValue*>;

constexpr double kTooLarge = 9.2e18;  // for 64 bits

// Digits as Python's int() and float() take them: white space around, underscores between digits,
// decimal digits of any script.
std::string PlainDigits(const JinjaText& text) {
  const JinjaText stripped = StripText(text, nullptr, true, true);
  std::string digits;
  for (size_t at = 0; at < stripped.size(); at += Utf8LengthAt(stripped.view(), at)) {
    const char32_t c = CodePointAt(stripped.view(), at);
    AppendCodePoint(IsDecimal(c) ? U'0' + DecimalValue(c) : c, &digits);
  }
  const auto is_digit = [&](size_t i) {
    return i < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[i]));
  };
  std::string plain;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool separates = digits[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1);
    if (!separates) plain += digits[i];
  }
  return plain;
}

std::optional<double> ParseFloat(const JinjaText& text) {
  std::string digits = PlainDigits(text);
  const bool negative = !digits.empty() && digits[0] == '-';
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.erase(0, 1);
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (digits.find('(') != std::string::npos) return std::nullopt;  // nan(...)
  if (error == std::errc::result_out_of_range)
    value = std::strtod(digits.c_str(), nullptr);
  else if (error != std::errc())
    return std::nullopt;
  return negative ? -value : value;
}

std::optional<int64_t> ParseInt(const JinjaText& text, int64_t base) {
  std::string digits = PlainDigits(text);
  const bool negative = !digits.empty() && digits[0] == '-';
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.erase(0, 1);
  const char prefix = digits.size() > 2 && digits[0] == '0' ? digits[1] | 0x20 : '\0';
  const int prefix_base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
  if (prefix_base != 0 && (base == prefix_base || base == 0)) {
    digits.erase(0, 2);
    base = prefix_base;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || digits.empty() || digits[0] == '-') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return negative ? -value : value;
}

JinjaResult Int(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("int", args, {"default", "base"}, 0, &a));
  JinjaValue missing = a[0] == nullptr ? JinjaValue(int64_t{0}) : *a[0];
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (const std::optional<int64_t> integer = value.as_int()) return JinjaValue(*integer);
  std::optional<double> number = value.as_number();
  if (const JinjaText* text = value.as_text()) {
    RETURN_IF_ERROR(run.ChargeText(8 * text->size()));
    const int64_t base = a[1] == nullptr ? 10 : a[1]->as_int().value_or(10);
    if (const std::optional<int64_t> integer = ParseInt(*text, base)) return JinjaValue(*integer);
    number = ParseFloat(*text);
  } else if (number.has_value() && std::isinf(*number)) {
    return InvalidArgumentError("cannot convert float infinity to integer");
  }
  if (!number.has_value() || !std::isfinite(*number)) return missing;
  if (std::abs(*number) > kTooLarge) {
    return UnimplementedError("int of {}, which needs more than 64 bits", *number);
  }
  return JinjaValue(static_cast<int64_t>(*number));
}

JinjaResult Float(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("float", args, {"default"}, 0, &a));
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (const std::optional<double> number = value.as_number()) return JinjaValue(*number);
  if (const JinjaText* text = value.as_text()) {
    RETURN_IF_ERROR(run.ChargeText(8 * text->size()));
    if (const std::optional<double> number = ParseFloat(*text)) return JinjaValue(*number);
  }
  return a[0] == nullptr ? JinjaValue(0.0) : *a[0];
}

JinjaResult Abs(JinjaRun&, const JinjaValue& value, const JinjaArgs&) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (const double* number = value.as_float()) return JinjaValue(std::abs(*number));
  if (const std::optional<int64_t> number = value.as_int()) {
    if (*number >= 0) return JinjaValue(*number);
    return JinjaSign(JinjaValue(*number), /*negate=*/true);
  }
  return InvalidArgumentError("bad operand type for abs(): '{}'", value.TypeName());
}

// round() of Python: the decimal nearest to the exact value, ties to even.
double RoundToDigits(double value, int digits) {
  if (!std::isfinite(value)) return value;
  const int size = std::snprintf(nullptr, 0, "%.*f", digits, value);
  std::string text(size, '\0');
  std::snprintf(text.data(), size + 1, "%.*f", digits, value);
  return std::strtod(text.c_str(), nullptr);
}

JinjaResult Round(JinjaRun&, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("round", args, {"precision", "method"}, 0, &a));
  if (value.is_undefined()) return JinjaUndefinedError(value);
  const std::optional<double> number = value.as_number();
  if (!number.has_value()) {
    return InvalidArgumentError("type {} doesn't define __round__ method", value.TypeName());
  }
  const int64_t precision = a[0] == nullptr ? 0 : a[0]->as_int().value_or(0);
  if (precision < 0 || precision > 300) {
    return UnimplementedError("round to a precision of {}, must be in [0, 300]", precision);
  }
  const std::string_view method =
      a[1] != nullptr && a[1]->is_text() ? a[1]->as_text()->view() : "common";
  if (method == "common") {
    if (value.as_int()) return JinjaValue(*value.as_int());
    return JinjaValue(RoundToDigits(*number, static_cast<int>(precision)));
  }
  if (method != "ceil" && method != "floor") {
    return InvalidArgumentError("method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *number * scale;
  return JinjaValue((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

JinjaResult Sum(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("sum", args, {"attribute", "start"}, 0, &a));
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, run.Items(value));
  JinjaValue total = a[1] == nullptr ? JinjaValue(int64_t{0}) : *a[1];
  if (total.is_text()) return InvalidArgumentError("sum() can't sum strings");
  for (const JinjaValue& item : items) {
    JinjaValue term = item;
    if (a[0] != nullptr && !a[0]->is_none()) {
      ASSIGN_OR_RETURN(term, JinjaAttributePath(item, *a[0], nullptr));
    }
    ASSIGN_OR_RETURN(total, JinjaArithmetic(run, "+", total, term));
  }
  return total;
}

struct Entry {
  std::string_view name;
  JinjaFilter filter;
};

constexpr Entry kFilters[] = {
    {"abs", Abs}, {"float", Float}, {"int", Int}, {"round", Round}, {"sum", Sum},
};

}  // namespace

JinjaFilter FindJinjaNumberFilter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found->filter;
}

}  // namespace tokenbutler
