#pragma once

#include <string_view>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

bool IsJinjaTest(std::string_view name);
// value is name(args). UNIMPLEMENTED when there is no such test.
absl::StatusOr<bool> RunJinjaTest(JinjaRun& run, std::string_view name, const JinjaValue& value,
                                  const JinjaArgs& args);

}  // namespace tokenbutler
