#include "engine/chat_template/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "engine/chat_template/jinja_percent_format.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_filters.h"

namespace tokenbutler {
namespace {

absl::Status OperandError(std::string_view op, const JinjaValue& a, const JinjaValue& b) {
  return InvalidArgumentError("unsupported operand type(s) for {}: '{}' and '{}'", op, a.TypeName(),
                              b.TypeName());
}

absl::Status OverflowError(std::string_view op) {
  return UnimplementedError("the result of {} needs an integer of more than 64 bits", op);
}

int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)));
}

JinjaResult IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return InvalidArgumentError("0.0 cannot be raised to a negative power");
    return JinjaValue(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) {
      return OverflowError("**");
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return OverflowError("**");
  }
  return JinjaValue(result);
}

JinjaResult IntegerArithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+" || op == "-" || op == "*") {
    const bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &result)
                          : op == "-" ? __builtin_sub_overflow(a, b, &result)
                                      : __builtin_mul_overflow(a, b, &result);
    if (overflow) return OverflowError(op);
    return JinjaValue(result);
  }
  if (op == "**") return IntegerPower(a, b);
  if (b == 0) return InvalidArgumentError("division by zero");
  if (op == "/") return JinjaValue(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // the one divisor for which the quotient may not fit
    if (op == "%") return JinjaValue(int64_t{0});
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) return OverflowError(op);
    return JinjaValue(result);
  }
  if (op == "//") return JinjaValue(FloorDivide(a, b));
  return JinjaValue(a - FloorDivide(a, b) * b);
}

double FloatModulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

JinjaResult FloatArithmetic(std::string_view op, double a, double b) {
  if (op == "+") return JinjaValue(a + b);
  if (op == "-") return JinjaValue(a - b);
  if (op == "*") return JinjaValue(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) return InvalidArgumentError("0.0 cannot be raised to a negative power");
    const double power = std::pow(a, b);
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
      return UnimplementedError("** with a complex result");
    }
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
      return InvalidArgumentError("the result of ** is too large");
    }
    return JinjaValue(power);
  }
  if (b == 0) return InvalidArgumentError("float division by zero");
  if (op == "/") return JinjaValue(a / b);
  if (op == "%") return JinjaValue(FloatModulo(a, b));
  // The quotient that belongs to Python's remainder; (a - remainder) / b is it up to rounding.
  const double quotient = (a - FloatModulo(a, b)) / b;
  if (quotient == 0) return JinjaValue(std::copysign(0.0, a / b));
  return JinjaValue(std::round(quotient));
}

JinjaResult RepeatSequence(JinjaRun& run, const JinjaValue& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const JinjaText* text = sequence.as_text()) {
    if (text->empty()) return sequence;
    RETURN_IF_ERROR(run.Charge(times));
    RETURN_IF_ERROR(run.ChargeText(text->size() * static_cast<size_t>(times)));
    JinjaTextBuilder builder;
    for (int64_t i = 0; i < times; ++i) builder.Append(*text);
    const JinjaText repeated = builder.Build();
    return JinjaValue(text->is_markup() ? repeated.AsMarkup() : repeated);
  }
  const JinjaList& list = *sequence.as_list();
  if (list.items.empty()) return sequence;
  RETURN_IF_ERROR(run.Charge(times));
  RETURN_IF_ERROR(run.Charge(times * static_cast<int64_t>(list.items.size())));
  std::vector<JinjaValue> items;
  for (int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return MakeJinjaList(std::move(items), list.flavor);
}

JinjaResult AddTexts(JinjaRun& run, const JinjaText& a, const JinjaText& b) {
  RETURN_IF_ERROR(run.ChargeText(a.size() + b.size()));
  const bool markup = a.is_markup() || b.is_markup();
  JinjaTextBuilder builder;
  builder.Append(markup ? EscapeJinjaHtml(a) : a);
  builder.Append(markup ? EscapeJinjaHtml(b) : b);
  const JinjaText sum = builder.Build();
  return JinjaValue(markup ? sum.AsMarkup() : sum);
}

bool IsListOrTuple(const JinjaValue& value) {
  const JinjaList* list = value.as_list();
  return list != nullptr &&
         (list->flavor == JinjaList::Flavor::kList || list->flavor == JinjaList::Flavor::kTuple);
}

JinjaResult AddLists(JinjaRun& run, const JinjaList& a, const JinjaList& b) {
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(a.items.size() + b.items.size())));
  std::vector<JinjaValue> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return MakeJinjaList(std::move(items), a.flavor);
}

absl::StatusOr<bool> Contains(JinjaRun& run, const JinjaValue& container, const JinjaValue& item) {
  if (const JinjaText* text = container.as_text()) {
    if (item.is_undefined()) return JinjaUndefinedError(item);
    if (!item.is_text()) {
      return InvalidArgumentError("'in <string>' requires string as left operand, not {}",
                                  item.TypeName());
    }
    RETURN_IF_ERROR(run.ChargeText(text->size()));
    return text->view().find(item.as_text()->view()) != std::string_view::npos;
  }
  if (const JinjaDict* dict = container.as_dict()) {
    RETURN_IF_ERROR(JinjaKey(item).status());
    return dict->Find(item) != nullptr;
  }
  if (container.as_list() == nullptr && !container.is_undefined()) {
    return InvalidArgumentError("argument of type '{}' is not iterable", container.TypeName());
  }
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, run.Items(container));
  return std::any_of(items.begin(), items.end(),
                     [&](const JinjaValue& other) { return JinjaEqual(item, other); });
}

}  // namespace

JinjaResult JinjaArithmetic(JinjaRun& run, std::string_view op, const JinjaValue& a,
                            const JinjaValue& b) {
  if (op == "%" && a.is_text()) return PercentFormat(run, *a.as_text(), b);
  if (a.is_undefined()) return JinjaUndefinedError(a);
  if (b.is_undefined()) return JinjaUndefinedError(b);
  if (a.as_int() && b.as_int()) return IntegerArithmetic(op, *a.as_int(), *b.as_int());
  if (a.as_number() && b.as_number()) return FloatArithmetic(op, *a.as_number(), *b.as_number());
  if (op == "+" && a.is_text() && b.is_text()) return AddTexts(run, *a.as_text(), *b.as_text());
  if (op == "+" && a.is_text()) {
    return InvalidArgumentError("can only concatenate str (not \"{}\") to str", b.TypeName());
  }
  if (op == "+" && IsListOrTuple(a) && IsListOrTuple(b) &&
      a.as_list()->flavor == b.as_list()->flavor) {
    return AddLists(run, *a.as_list(), *b.as_list());
  }
  if (op == "*") {
    if ((a.is_text() || IsListOrTuple(a)) && b.as_int()) return RepeatSequence(run, a, *b.as_int());
    if ((b.is_text() || IsListOrTuple(b)) && a.as_int()) return RepeatSequence(run, b, *a.as_int());
  }
  return OperandError(op, a, b);
}

JinjaResult JinjaSign(const JinjaValue& value, bool negate) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (const double* number = value.as_float()) return JinjaValue(negate ? -*number : *number);
  if (const std::optional<int64_t> number = value.as_int()) {
    int64_t result = *number;
    if (negate && __builtin_sub_overflow(int64_t{0}, *number, &result)) return OverflowError("-");
    return JinjaValue(result);
  }
  return InvalidArgumentError("bad operand type for unary {}: '{}'", negate ? "-" : "+",
                              value.TypeName());
}

absl::StatusOr<bool> JinjaCompare(JinjaRun& run, std::string_view op, const JinjaValue& a,
                                  const JinjaValue& b) {
  RETURN_IF_ERROR(run.Charge(1));
  if (op == "==") return JinjaEqual(a, b);
  if (op == "!=") return !JinjaEqual(a, b);
  if (op == "<") return JinjaLess(a, b);
  if (op == ">") return JinjaLess(b, a);
  if (op == "in") return Contains(run, b, a);
  if (op == "not in") {
    ASSIGN_OR_RETURN(const bool contains, Contains(run, b, a));
    return !contains;
  }
  // <= and >=. Not the negation of the opposite: NaN.
  ASSIGN_OR_RETURN(const bool less, op == "<=" ? JinjaLess(a, b) : JinjaLess(b, a));
  return less || JinjaEqual(a, b);
}

}  // namespace tokenbutler
