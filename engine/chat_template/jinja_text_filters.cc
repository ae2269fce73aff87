#include "engine/chat_template/jinja_text_filters.h"

#include <algorithm>
#include <iterator>

#include "engine/chat_template/jinja_filters.h"
#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_methods.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_percent_format.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_split.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

using Pointers = std::vector<const JinjaValue*>;

absl::StatusOr<int64_t> IntArg(const JinjaValue* value, int64_t missing, std::string_view filter) {
  if (value == nullptr || value->is_none()) return missing;
  if (value->is_undefined()) return JinjaUndefinedError(*value);
  if (value->as_int()) return *value->as_int();
  return InvalidArgumentError("filter '{}' wants an integer, not {}", filter, value->TypeName());
}

// A filter that is str(value).method(args).
template <const char* const& name>
JinjaResult ByMethod(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  return FindJinjaTextMethod(name)(run, JinjaStr(value), args);
}
constexpr const char* kUpper = "upper";
constexpr const char* kLower = "lower";
constexpr const char* kCapitalize = "capitalize";
constexpr const char* kStrip = "strip";

std::string TitleOfWords(std::string_view text) {
  const auto is_break = [&](size_t at) {
    const char32_t c = CodePointAt(text, at);
    return IsPythonSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    const bool breaks = is_break(begin);
    while (end < text.size() && is_break(end) == breaks) end += Utf8LengthAt(text, end);
    const size_t first = Utf8LengthAt(text, begin);
    out += PythonUpper(text.substr(begin, first));
    out += PythonLower(text.substr(begin + first, end - begin - first));
    begin = end;
  }
  return out;
}

JinjaResult Title(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  const JinjaText text = JinjaStr(value);
  RETURN_IF_ERROR(run.ChargeText(4 * text.size()));
  return JinjaValue(JinjaText(TitleOfWords(text.view()), text.has_content()));
}

JinjaResult Replace(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("replace", args, {"old", "new", "count"}, 2, &a));
  ASSIGN_OR_RETURN(const int64_t count, IntArg(a[2], -1, "replace"));
  ASSIGN_OR_RETURN(JinjaText text,
                   ReplaceText(run, JinjaStr(value), JinjaStr(*a[0]), JinjaStr(*a[1]), count));
  return JinjaValue(std::move(text));
}

JinjaResult String(JinjaRun&, const JinjaValue& value, const JinjaArgs&) {
  return JinjaValue(JinjaStr(value));
}

JinjaResult Safe(JinjaRun&, const JinjaValue& value, const JinjaArgs&) {
  return JinjaValue(JinjaStr(value).AsMarkup());
}

JinjaResult Escape(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  const JinjaText text = JinjaStr(value);
  RETURN_IF_ERROR(run.ChargeText(5 * text.size()));
  return JinjaValue(EscapeJinjaHtml(text));
}

JinjaResult ForceEscape(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  const JinjaText text = JinjaStr(value);
  RETURN_IF_ERROR(run.ChargeText(5 * text.size()));
  return JinjaValue(EscapeJinjaHtml(JinjaText(std::string(text.view()), text.content())));
}

JinjaResult Indent(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("indent", args, {"width", "first", "blank"}, 0, &a));
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (!value.is_text()) {
    return InvalidArgumentError("filter 'indent' wants a string, not {}", value.TypeName());
  }
  JinjaText indent;
  if (a[0] != nullptr && a[0]->is_text()) {
    indent = *a[0]->as_text();
  } else {
    ASSIGN_OR_RETURN(const int64_t width, IntArg(a[0], 4, "indent"));
    RETURN_IF_ERROR(run.ChargeText(std::max<int64_t>(width, 0)));
    indent = JinjaText(std::string(std::max<int64_t>(width, 0), ' '));
  }
  const bool first = a[1] != nullptr && a[1]->Truthy();
  const bool blank = a[2] != nullptr && a[2]->Truthy();
  const JinjaText& text = *value.as_text();
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  // jinja2 appends a newline first, so that a trailing one makes a last, empty line.
  JinjaTextBuilder padded;
  padded.Append(text);
  padded.Append("\n");
  const std::vector<JinjaText> lines = SplitTextLines(padded.Build(), /*keep_ends=*/false);
  JinjaTextBuilder out;
  if (first) out.Append(indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    RETURN_IF_ERROR(run.Charge(1 + static_cast<int64_t>(indent.size() / 16)));
    if (out.size() > run.options().max_output_bytes) break;
    if (i > 0) out.Append("\n");
    if (i > 0 && (blank || !lines[i].empty())) out.Append(indent);
    out.Append(lines[i]);
  }
  RETURN_IF_ERROR(run.ChargeText(out.size()));
  const JinjaText indented = out.Build();
  return JinjaValue(text.is_markup() ? indented.AsMarkup() : indented);
}

JinjaResult Center(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  JinjaArgs with_width = args;
  if (args.positional.empty() && args.named.empty()) {
    with_width.positional.emplace_back(int64_t{80});
  }
  return FindJinjaTextMethod("center")(run, JinjaStr(value), with_width);
}

JinjaResult Truncate(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(BindJinjaArgs("truncate", args, {"length", "killwords", "end", "leeway"}, 0, &a));
  ASSIGN_OR_RETURN(const int64_t length, IntArg(a[0], 255, "truncate"));
  ASSIGN_OR_RETURN(const int64_t leeway, IntArg(a[3], 5, "truncate"));
  const JinjaText end = a[2] == nullptr ? JinjaText("...") : JinjaStr(*a[2]);
  const int64_t end_length = CountCodePoints(end.view());
  if (length < end_length || leeway < 0) {
    return InvalidArgumentError("truncate: length {} or leeway {} is too small", length, leeway);
  }
  const JinjaText text = JinjaStr(value);
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  if (CountCodePoints(text.view()) <= length + leeway) return JinjaValue(text);
  JinjaText kept = text.Slice(0, OffsetOfCodePoint(text.view(), length - end_length));
  if (a[1] == nullptr || !a[1]->Truthy()) kept = SplitOn(kept, " ", 1, /*from_right=*/true)[0];
  return JinjaArithmetic(run, "+", JinjaValue(kept), JinjaValue(end));
}

JinjaResult WordCount(JinjaRun& run, const JinjaValue& value, const JinjaArgs&) {
  const JinjaText text = JinjaStr(value);
  const std::string_view view = text.view();
  RETURN_IF_ERROR(run.ChargeText(4 * view.size()));
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0; at < view.size(); at += Utf8LengthAt(view, at)) {
    const char32_t c = CodePointAt(view, at);
    const bool is_word = c == '_' || IsAlphabetic(c) || IsNumeric(c);
    count += is_word && !inside;
    inside = is_word;
  }
  return JinjaValue(count);
}

JinjaResult Format(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  if (!args.named.empty() && !args.positional.empty()) {
    return InvalidArgumentError("format: positional and keyword arguments at the same time");
  }
  if (args.named.empty()) {
    return PercentFormat(run, JinjaStr(value), JinjaValue::Tuple(args.positional));
  }
  JinjaDict named;
  for (const auto& [name, argument] : args.named) {
    RETURN_IF_ERROR(named.Set(JinjaValue::Text(name), argument));
  }
  ASSIGN_OR_RETURN(const JinjaValue mapping, MakeJinjaDict(std::move(named)));
  return PercentFormat(run, JinjaStr(value), mapping);
}

absl::Status ReadSeparators(const JinjaValue& value, JinjaJsonStyle* style) {
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> pair, JinjaItems(value));
  if (pair.size() != 2 || !pair[0].is_text() || !pair[1].is_text()) {
    return InvalidArgumentError("tojson: separators must be two strings");
  }
  style->item_separator = pair[0].as_text()->view();
  style->key_separator = pair[1].as_text()->view();
  return absl::OkStatus();
}

// A first guess at the size of a value's JSON, so that hostile ones are stopped before it is made.
absl::Status ChargeJson(JinjaRun& run, const JinjaValue& value) {
  if (const JinjaText* text = value.as_text()) return run.ChargeText(2 * text->size() + 16);
  RETURN_IF_ERROR(run.Charge(1));
  if (const JinjaList* list = value.as_list()) {
    for (const JinjaValue& item : list->items) RETURN_IF_ERROR(ChargeJson(run, item));
  }
  if (const JinjaDict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->entries) {
      RETURN_IF_ERROR(ChargeJson(run, key));
      RETURN_IF_ERROR(ChargeJson(run, item));
    }
  }
  return absl::OkStatus();
}

JinjaResult ToJson(JinjaRun& run, const JinjaValue& value, const JinjaArgs& args) {
  Pointers a;
  RETURN_IF_ERROR(
      BindJinjaArgs("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, &a));
  JinjaJsonStyle style;
  style.ensure_ascii = a[0] != nullptr && a[0]->Truthy();
  style.sort_keys = a[3] != nullptr && a[3]->Truthy();
  if (a[1] != nullptr && !a[1]->is_none()) {
    if (const JinjaText* indent = a[1]->as_text()) {
      style.indent = indent->view();
    } else {
      ASSIGN_OR_RETURN(const int64_t width, IntArg(a[1], 0, "tojson"));
      if (width > 100) return InvalidArgumentError("tojson: an indent of {}, at most 100", width);
      style.indent = std::string(std::max<int64_t>(width, 0), ' ');
    }
    style.item_separator.assign(1, ',');
  }
  if (a[2] != nullptr && !a[2]->is_none()) RETURN_IF_ERROR(ReadSeparators(*a[2], &style));
  RETURN_IF_ERROR(ChargeJson(run, value));
  ASSIGN_OR_RETURN(JinjaText json, JinjaToJson(value, style));
  RETURN_IF_ERROR(run.ChargeText(json.size()));
  return JinjaValue(std::move(json));
}

struct Entry {
  std::string_view name;
  JinjaFilter filter;
};

constexpr Entry kFilters[] = {
    {"capitalize", ByMethod<kCapitalize>},
    {"center", Center},
    {"e", Escape},
    {"escape", Escape},
    {"forceescape", ForceEscape},
    {"format", Format},
    {"indent", Indent},
    {"lower", ByMethod<kLower>},
    {"replace", Replace},
    {"safe", Safe},
    {"string", String},
    {"title", Title},
    {"tojson", ToJson},
    {"trim", ByMethod<kStrip>},
    {"truncate", Truncate},
    {"upper", ByMethod<kUpper>},
    {"wordcount", WordCount},
};

}  // namespace

JinjaText EscapeJinjaHtml(const JinjaText& text) {
  if (text.is_markup()) return text;
  const std::string_view view = text.view();
  JinjaTextBuilder out;
  size_t plain = 0;
  for (size_t at = 0; at < view.size(); ++at) {
    std::string_view entity;
    switch (view[at]) {
      case '&':
        entity = "&amp;";
        break;
      case '<':
        entity = "&lt;";
        break;
      case '>':
        entity = "&gt;";
        break;
      case '"':
        entity = "&#34;";
        break;
      case '\'':
        entity = "&#39;";
        break;
      default:
        continue;
    }
    out.Append(text, plain, at);
    out.Append(entity);
    plain = at + 1;
  }
  out.Append(text, plain, view.size());
  return out.Build().AsMarkup();
}

JinjaFilter FindJinjaTextFilter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Entry& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found->filter;
}

}  // namespace tokenbutler
