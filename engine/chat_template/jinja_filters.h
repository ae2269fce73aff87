#pragma once

#include <string_view>

#include "engine/chat_template/jinja_value.h"

namespace tokenbutler {

using JinjaFilter = JinjaResult (*)(JinjaRun&, const JinjaValue&, const JinjaArgs&);

// The filters by topic; null when the name is not of that topic.
JinjaFilter FindJinjaTextFilter(std::string_view name);
JinjaFilter FindJinjaNumberFilter(std::string_view name);
JinjaFilter FindJinjaSequenceFilter(std::string_view name);
JinjaFilter FindJinjaSelectionFilter(std::string_view name);

bool IsJinjaFilter(std::string_view name);
// value|name(args). UNIMPLEMENTED when there is no such filter.
JinjaResult RunJinjaFilter(JinjaRun& run, std::string_view name, const JinjaValue& value,
                           const JinjaArgs& args);

// What the attribute argument of map, sort ... names: "a.b.0", or a number. A missing attribute is
// `missing`, or an Undefined when that is null.
JinjaResult JinjaAttributePath(const JinjaValue& item, const JinjaValue& path,
                               const JinjaValue* missing);

// How sort, unique, min ... compare unless case_sensitive: strings in lower case.
JinjaValue JinjaIgnoreCase(const JinjaValue& value);

}  // namespace tokenbutler
