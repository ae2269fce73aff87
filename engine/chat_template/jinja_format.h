#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

// Python's str(value), what {{ value }} prints. Text keeps its provenance, also inside collections.
JinjaText JinjaStr(const JinjaValue& value);
// Python's repr(value).
JinjaText JinjaRepr(const JinjaValue& value);

// repr(float): the shortest digits that read back the same, "1e+16" from there on.
std::string PythonFloatRepr(double value);

// json.dumps as transformers' tojson filter calls it.
struct JinjaJsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level's; unset: everything on one line
  std::string item_separator = ", ";  // json.dumps takes "," with an indent
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// INVALID_ARGUMENT for what JSON cannot express. Text keeps its provenance.
absl::StatusOr<JinjaText> JinjaToJson(const JinjaValue& value, const JinjaJsonStyle& style);

}  // namespace tokenbutler
