#pragma once

#include <string_view>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// Reads JSON as Python's json module would, objects in their order. Every string in it counts as
// content. INVALID_ARGUMENT with the position for a syntax error, and for nesting beyond
// kMaxJinjaValueDepth. Integers beyond 64 bits become floats.
JinjaResult ParseJinjaJson(std::string_view json);

}  // namespace tokenbutler
