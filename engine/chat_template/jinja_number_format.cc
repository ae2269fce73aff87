#include "engine/chat_template/jinja_number_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

std::string IntegerDigits(uint64_t magnitude, char type) {
  switch (type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return std::to_string(magnitude);
  }
}

std::string FloatDigits(double magnitude, const JinjaFormatSpec& spec) {
  const char upper_type = static_cast<char>(spec.type & ~0x20);
  if (std::isnan(magnitude)) return spec.type != '\0' && spec.type == upper_type ? "NAN" : "nan";
  if (std::isinf(magnitude)) return spec.type != '\0' && spec.type == upper_type ? "INF" : "inf";
  if (spec.type == '\0' && spec.precision < 0) return PythonFloatRepr(magnitude);
  if (spec.type == '%') {
    JinjaFormatSpec fixed = spec;
    fixed.type = 'f';
    return FloatDigits(magnitude * 100, fixed) + "%";
  }
  const char pattern[] = {'%',
                          spec.alternate ? '#' : '.',
                          spec.alternate ? '.' : '*',
                          spec.alternate ? '*' : (spec.type == '\0' ? 'g' : spec.type),
                          spec.alternate ? (spec.type == '\0' ? 'g' : spec.type) : '\0',
                          '\0'};
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const int size = std::snprintf(nullptr, 0, pattern, precision, magnitude);
  std::string digits(size, '\0');
  std::snprintf(digits.data(), size + 1, pattern, precision, magnitude);
  return digits;
}

void InsertGrouping(std::string* digits) {
  const size_t end = std::min(digits->find_first_not_of("0123456789"), digits->size());
  for (size_t at = end; at > 3;) {
    at -= 3;
    digits->insert(at, 1, ',');
  }
}

}  // namespace

absl::StatusOr<std::string> FormatJinjaNumber(const JinjaValue& value,
                                              const JinjaFormatSpec& spec) {
  const std::string_view integer_types = "dxXob";
  const bool integer_type = integer_types.find(spec.type) != std::string_view::npos;
  const std::optional<int64_t> integer = value.as_int();
  const std::optional<double> number = value.as_number();
  if (!number.has_value() || (integer_type && !integer.has_value())) {
    return InvalidArgumentError("format type '{}' does not go with '{}'",
                                spec.type == '\0' ? 'd' : spec.type, value.TypeName());
  }
  const bool as_integer = integer.has_value() && (integer_type || spec.type == '\0');
  const bool negative = as_integer ? *integer < 0 : std::signbit(*number);
  std::string digits;
  if (as_integer) {
    const uint64_t magnitude =
        negative ? uint64_t{0} - static_cast<uint64_t>(*integer) : static_cast<uint64_t>(*integer);
    digits = IntegerDigits(magnitude, spec.type);
  } else {
    digits = FloatDigits(std::abs(*number), spec);
  }
  if (spec.grouping) InsertGrouping(&digits);
  std::string prefix;
  if (negative) {
    prefix.assign(1, '-');
  } else if (spec.sign != '-') {
    prefix.assign(1, spec.sign);
  }
  if (spec.alternate && as_integer &&
      std::string_view("xXob").find(spec.type) != std::string::npos) {
    prefix += fmt::format("0{}", spec.type);
  }
  return prefix + digits;
}

void PadJinjaText(const JinjaText& body, const JinjaFormatSpec& spec, char missing_align,
                  JinjaTextBuilder* out) {
  const int64_t missing = std::max<int64_t>(spec.width - CountCodePoints(body.view()), 0);
  const char align = spec.align == '\0' ? missing_align : spec.align;
  std::string fill;
  AppendCodePoint(spec.fill, &fill);
  const auto pad = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) out->Append(fill);
  };
  if (align == '=') {
    size_t prefix = std::min(body.view().find_first_not_of("+- "), body.size());
    if (spec.alternate && prefix + 2 <= body.size() && body.view()[prefix] == '0') prefix += 2;
    out->Append(body, 0, prefix);
    pad(missing);
    out->Append(body, prefix, body.size());
    return;
  }
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  pad(before);
  out->Append(body);
  pad(missing - before);
}

}  // namespace tokenbutler
