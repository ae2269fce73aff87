#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// The functions every template sees: range, dict, namespace, raise_exception, strftime_now; and the
// names of jinja2's that we do not have, as functions that say so.
std::vector<std::pair<std::string_view, JinjaValue>> JinjaGlobals();

}  // namespace tokenbutler
