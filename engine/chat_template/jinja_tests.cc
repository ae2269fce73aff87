#include "engine/chat_template/jinja_tests.h"

#include <algorithm>
#include <iterator>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_split.h"

namespace tokenbutler {
namespace {

using Result = absl::StatusOr<bool>;
using Value = JinjaValue;
using Predicate = bool (*)(const Value&);

bool IsInteger(const Value& value) { return value.as_int().has_value() && !value.is_bool(); }
bool IsNumber(const Value& value) { return value.as_number().has_value(); }
bool IsMapping(const Value& value) { return value.as_dict() != nullptr; }
bool IsDefined(const Value& value) { return !value.is_undefined(); }
bool IsTrue(const Value& value) { return value.is_bool() && value.Truthy(); }
bool IsFalse(const Value& value) { return value.is_bool() && !value.Truthy(); }
bool IsMarkup(const Value& value) { return value.is_text() && value.as_text()->is_markup(); }

bool IsSequence(const Value& value) {
  const JinjaList* list = value.as_list();
  // An Undefined has a length and an item access, though one that raises.
  return value.is_text() || value.is_undefined() || value.as_dict() != nullptr ||
         (list != nullptr && list->is_sequence());
}

bool IsIterable(const Value& value) {
  return value.is_text() || value.is_undefined() || value.as_dict() != nullptr ||
         value.as_list() != nullptr || value.as_loop() != nullptr;
}

bool IsCallable(const Value& value) {
  return value.as_function() != nullptr || value.as_loop() != nullptr || value.is_undefined();
}

bool IsUpperText(const Value& value) { return IsTextUpper(JinjaStr(value).view()); }
bool IsLowerText(const Value& value) { return IsTextLower(JinjaStr(value).view()); }

Result Remainder(JinjaRun& run, const Value& value, const Value& divisor, int64_t wanted) {
  ASSIGN_OR_RETURN(const Value remainder, JinjaArithmetic(run, "%", value, divisor));
  return JinjaEqual(remainder, Value(wanted));
}

struct PlainTest {
  std::string_view name;
  Predicate holds;
};

constexpr PlainTest kPlainTests[] = {
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"callable", IsCallable},
    {"defined", IsDefined},
    {"escaped", IsMarkup},
    {"false", IsFalse},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"integer", IsInteger},
    {"iterable", IsIterable},
    {"lower", IsLowerText},
    {"mapping", IsMapping},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"number", IsNumber},
    {"sequence", IsSequence},
    {"string", [](const Value& v) { return v.is_text(); }},
    {"true", IsTrue},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"upper", IsUpperText},
};

// Tests that are an operator with one argument.
struct OperatorTest {
  std::string_view name;
  std::string_view op;
};

constexpr OperatorTest kOperatorTests[] = {
    {"!=", "!="}, {"<", "<"},        {"<=", "<="}, {"==", "=="},         {">", ">"},  {">=", ">="},
    {"eq", "=="}, {"equalto", "=="}, {"ge", ">="}, {"greaterthan", ">"}, {"gt", ">"}, {"in", "in"},
    {"le", "<="}, {"lessthan", "<"}, {"lt", "<"},  {"ne", "!="},
};

constexpr std::string_view kOtherTests[] = {"divisibleby", "even",   "filter",
                                            "odd",         "sameas", "test"};

template <typename Tests>
auto* FindTest(const Tests& tests, std::string_view name) {
  const auto* found = std::find_if(std::begin(tests), std::end(tests),
                                   [&](const auto& test) { return test.name == name; });
  return found == std::end(tests) ? nullptr : found;
}

absl::Status CheckNumArgs(std::string_view name, const JinjaArgs& args, size_t count) {
  if (args.positional.size() + args.named.size() == count) return absl::OkStatus();
  return InvalidArgumentError("test '{}' takes {} argument(s), {} given", name, count,
                              args.positional.size() + args.named.size());
}

}  // namespace

bool IsJinjaTest(std::string_view name) {
  return FindTest(kPlainTests, name) != nullptr || FindTest(kOperatorTests, name) != nullptr ||
         std::find(std::begin(kOtherTests), std::end(kOtherTests), name) != std::end(kOtherTests);
}

absl::StatusOr<bool> RunJinjaTest(JinjaRun& run, std::string_view name, const JinjaValue& value,
                                  const JinjaArgs& args) {
  if (const PlainTest* test = FindTest(kPlainTests, name)) {
    RETURN_IF_ERROR(CheckNumArgs(name, args, 0));
    return test->holds(value);
  }
  if (!IsJinjaTest(name)) return UnimplementedError("no test named '{}'", name);
  const bool unary = name == "odd" || name == "even" || name == "filter" || name == "test";
  RETURN_IF_ERROR(CheckNumArgs(name, args, unary ? 0 : 1));
  if (name == "odd") return Remainder(run, value, Value(int64_t{2}), 1);
  if (name == "even") return Remainder(run, value, Value(int64_t{2}), 0);
  if (unary) {
    const JinjaText text = JinjaStr(value);
    return name == "filter" ? IsJinjaFilter(text.view()) : IsJinjaTest(text.view());
  }
  const JinjaValue& argument = args.positional.empty() ? args.named[0].second : args.positional[0];
  if (name == "divisibleby") return Remainder(run, value, argument, 0);
  if (name == "sameas") return value.IsSame(argument);
  return JinjaCompare(run, FindTest(kOperatorTests, name)->op, value, argument);
}

}  // namespace tokenbutler
