#pragma once

#include <string_view>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// Python's operators on template values. Errors are Python's TypeErrors and the like as
// INVALID_ARGUMENT; integers beyond 64 bits are UNIMPLEMENTED.

// + - * / // % **
JinjaResult JinjaArithmetic(JinjaRun& run, std::string_view op, const JinjaValue& a,
                            const JinjaValue& b);
JinjaResult JinjaSign(const JinjaValue& value, bool negate);

// == != < <= > >= in "not in"
absl::StatusOr<bool> JinjaCompare(JinjaRun& run, std::string_view op, const JinjaValue& a,
                                  const JinjaValue& b);

// object.name and object[key], in the order in which jinja2 looks. What is not there is Undefined;
// what the sandbox forbids is an Undefined that says so. UNIMPLEMENTED for a method of Python's
// that we do not have.
JinjaResult JinjaAttribute(const JinjaValue& object, std::string_view name);
JinjaResult JinjaItem(const JinjaValue& object, const JinjaValue& key);

// object[start:stop:step]; None where left out.
JinjaResult JinjaSlice(JinjaRun& run, const JinjaValue& object, const JinjaValue& start,
                       const JinjaValue& stop, const JinjaValue& step);

}  // namespace tokenbutler
