#pragma once

#include <optional>
#include <string_view>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// What Python's getattr(object, name) gives on strings, lists, dictionaries and numbers, as the
// immutable sandbox lets templates see it: a bound method, an Undefined that says "unsafe" for what
// would change the object or is internal, nothing for an attribute that does not exist.
// UNIMPLEMENTED for a method of Python's that we do not have.
absl::StatusOr<std::optional<JinjaValue>> FindJinjaMethod(const JinjaValue& object,
                                                          std::string_view name);

// The attributes of `loop`; `self` is the value that holds it.
std::optional<JinjaValue> LoopAttribute(const JinjaValue& self, const JinjaLoop& loop,
                                        std::string_view name);

// One method of str; null when unknown.
using JinjaTextMethod = JinjaResult (*)(JinjaRun&, const JinjaText&, const JinjaArgs&);
JinjaTextMethod FindJinjaTextMethod(std::string_view name);

}  // namespace tokenbutler
