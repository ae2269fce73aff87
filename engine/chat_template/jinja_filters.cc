#include "engine/chat_template/jinja_filters.h"

#include <algorithm>

#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_split.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

JinjaFilter FindFilter(std::string_view name) {
  if (const JinjaFilter filter = FindJinjaTextFilter(name)) return filter;
  if (const JinjaFilter filter = FindJinjaNumberFilter(name)) return filter;
  if (const JinjaFilter filter = FindJinjaSequenceFilter(name)) return filter;
  return FindJinjaSelectionFilter(name);
}

}  // namespace

bool IsJinjaFilter(std::string_view name) { return FindFilter(name) != nullptr; }

JinjaResult RunJinjaFilter(JinjaRun& run, std::string_view name, const JinjaValue& value,
                           const JinjaArgs& args) {
  const JinjaFilter filter = FindFilter(name);
  if (filter == nullptr) return UnimplementedError("no filter named '{}'", name);
  return filter(run, value, args);
}

JinjaResult JinjaAttributePath(const JinjaValue& item, const JinjaValue& path,
                               const JinjaValue* missing) {
  JinjaValue value = item;
  const auto step = [&](const JinjaValue& key) -> absl::Status {
    ASSIGN_OR_RETURN(value, JinjaItem(value, key));
    if (value.is_undefined() && missing != nullptr) value = *missing;
    return absl::OkStatus();
  };
  if (!path.is_text()) {
    RETURN_IF_ERROR(step(path));
    return value;
  }
  for (const JinjaText& part : SplitOn(*path.as_text(), ".", INT64_MAX, false)) {
    const std::string_view view = part.view();
    const bool is_number =
        !view.empty() && view.size() < 18 &&
        std::all_of(view.begin(), view.end(), [](char c) { return c >= '0' && c <= '9'; });
    RETURN_IF_ERROR(
        step(is_number ? JinjaValue(int64_t{std::stoll(std::string(view))}) : JinjaValue(part)));
  }
  return value;
}

JinjaValue JinjaIgnoreCase(const JinjaValue& value) {
  if (!value.is_text()) return value;
  return JinjaValue(
      JinjaText(PythonLower(value.as_text()->view()), value.as_text()->has_content()));
}

}  // namespace tokenbutler
