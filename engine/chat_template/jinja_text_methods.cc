// The methods of Python's str. Those that cut or join keep each byte's provenance; those that
// change letters give a text that is all content as soon as any of it was.

#include <algorithm>
#include <iterator>
#include <limits>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_methods.h"
#include "engine/chat_template/jinja_percent_format.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_filters.h"
#include "engine/chat_template/jinja_text_split.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

using Text = JinjaText;
using Args = JinjaArgs;
using ArgPointers = std::vector<const JinjaValue*>;

absl::StatusOr<Text> TextArg(const JinjaValue& value, std::string_view method) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (value.is_text()) return *value.as_text();
  return InvalidArgumentError("{}() argument must be str, not {}", method, value.TypeName());
}

absl::StatusOr<int64_t> IntArg(const JinjaValue* value, int64_t missing, std::string_view method) {
  if (value == nullptr) return missing;
  if (value->is_undefined()) return JinjaUndefinedError(*value);
  if (value->as_int()) return *value->as_int();
  return InvalidArgumentError("{}() argument must be int, not {}", method, value->TypeName());
}

JinjaResult Remap(JinjaRun& run, const Text& text, std::string (*map)(std::string_view)) {
  RETURN_IF_ERROR(run.ChargeText(4 * text.size()));
  return JinjaValue(Text(map(text.view()), text.has_content()));
}

template <std::string (*map)(std::string_view)>
JinjaResult Mapped(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers none;
  RETURN_IF_ERROR(BindJinjaArgs("str method", args, {}, 0, &none));
  return Remap(run, text, map);
}

template <bool left, bool right>
JinjaResult Strip(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("strip", args, {"chars"}, 0, &a));
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  if (a[0] == nullptr || a[0]->is_none()) return JinjaValue(StripText(text, nullptr, left, right));
  ASSIGN_OR_RETURN(const Text chars, TextArg(*a[0], "strip"));
  RETURN_IF_ERROR(run.ChargeText(chars.size()));
  return JinjaValue(StripText(text, &chars, left, right));
}

template <bool from_right>
JinjaResult Split(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("split", args, {"sep", "maxsplit"}, 0, &a));
  ASSIGN_OR_RETURN(int64_t max_splits, IntArg(a[1], -1, "split"));
  if (max_splits < 0) max_splits = std::numeric_limits<int64_t>::max();
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(text.size())));
  std::vector<Text> parts;
  if (a[0] == nullptr || a[0]->is_none()) {
    parts = SplitOnSpace(text, max_splits, from_right);
  } else {
    ASSIGN_OR_RETURN(const Text separator, TextArg(*a[0], "split"));
    if (separator.empty()) return InvalidArgumentError("empty separator");
    parts = SplitOn(text, separator.view(), max_splits, from_right);
  }
  std::vector<JinjaValue> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.emplace_back(std::move(part));
  return MakeJinjaList(std::move(items));
}

JinjaResult SplitLines(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("splitlines", args, {"keepends"}, 0, &a));
  RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(text.size())));
  std::vector<JinjaValue> items;
  for (Text& line : SplitTextLines(text, a[0] != nullptr && a[0]->Truthy())) {
    items.emplace_back(std::move(line));
  }
  return MakeJinjaList(std::move(items));
}

template <bool from_right>
JinjaResult Partition(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("partition", args, {"sep"}, 1, &a));
  ASSIGN_OR_RETURN(const Text separator, TextArg(*a[0], "partition"));
  if (separator.empty()) return InvalidArgumentError("empty separator");
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  const size_t at =
      from_right ? text.view().rfind(separator.view()) : text.view().find(separator.view());
  if (at == std::string_view::npos) {
    const JinjaValue nothing{Text()};
    if (from_right) return JinjaValue::Tuple({nothing, nothing, JinjaValue(text)});
    return JinjaValue::Tuple({JinjaValue(text), nothing, nothing});
  }
  return JinjaValue::Tuple({JinjaValue(text.Slice(0, at)), JinjaValue(separator),
                            JinjaValue(text.Slice(at + separator.size()))});
}

// Part of `text` between code points a[1] and a[2], as startswith, find and count take them.
absl::StatusOr<std::pair<size_t, size_t>> Range(const Text& text, const ArgPointers& a,
                                                std::string_view method) {
  size_t bounds[2] = {0, text.size()};
  for (int i = 0; i < 2; ++i) {
    if (a[i + 1] == nullptr || a[i + 1]->is_none()) continue;
    ASSIGN_OR_RETURN(int64_t index, IntArg(a[i + 1], 0, method));
    if (index < 0) index = std::max<int64_t>(index + CountCodePoints(text.view()), 0);
    bounds[i] = OffsetOfCodePoint(text.view(), index);
  }
  return std::pair(bounds[0], bounds[1]);
}

template <bool at_start>
JinjaResult Affix(JinjaRun& run, const Text& text, const Args& args) {
  const std::string_view name = at_start ? "startswith" : "endswith";
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs(name, args, {"prefix", "start", "end"}, 1, &a));
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  ASSIGN_OR_RETURN(const auto range, Range(text, a, name));
  if (range.first > range.second) return JinjaValue(false);
  const std::string_view part = text.view().substr(range.first, range.second - range.first);
  std::vector<JinjaValue> candidates = {*a[0]};
  const JinjaList* list = a[0]->as_list();
  if (list != nullptr && list->flavor == JinjaList::Flavor::kTuple) candidates = list->items;
  for (const JinjaValue& candidate : candidates) {
    ASSIGN_OR_RETURN(const Text affix, TextArg(candidate, name));
    const std::string_view view = affix.view();
    if (view.size() > part.size()) continue;
    if ((at_start ? part.substr(0, view.size()) : part.substr(part.size() - view.size())) == view) {
      return JinjaValue(true);
    }
  }
  return JinjaValue(false);
}

template <bool at_start>
JinjaResult RemoveAffix(JinjaRun&, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("removeprefix", args, {"prefix"}, 1, &a));
  ASSIGN_OR_RETURN(const Text affix, TextArg(*a[0], "removeprefix"));
  const std::string_view view = text.view();
  if (affix.size() > view.size()) return JinjaValue(text);
  if (at_start && view.substr(0, affix.size()) == affix.view()) {
    return JinjaValue(text.Slice(affix.size()));
  }
  const size_t rest = view.size() - affix.size();
  if (!at_start && view.substr(rest) == affix.view()) return JinjaValue(text.Slice(0, rest));
  return JinjaValue(text);
}

template <bool from_right, bool must_find>
JinjaResult Find(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("find", args, {"sub", "start", "end"}, 1, &a));
  ASSIGN_OR_RETURN(const Text wanted, TextArg(*a[0], "find"));
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  ASSIGN_OR_RETURN(const auto range, Range(text, a, "find"));
  size_t at = std::string_view::npos;
  if (range.first <= range.second) {
    const std::string_view part = text.view().substr(range.first, range.second - range.first);
    at = from_right ? part.rfind(wanted.view()) : part.find(wanted.view());
  }
  if (at == std::string_view::npos) {
    if (must_find) return InvalidArgumentError("substring not found");
    return JinjaValue(int64_t{-1});
  }
  return JinjaValue(CountCodePoints(text.view().substr(0, range.first + at)));
}

JinjaResult Count(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("count", args, {"sub", "start", "end"}, 1, &a));
  ASSIGN_OR_RETURN(const Text wanted, TextArg(*a[0], "count"));
  RETURN_IF_ERROR(run.ChargeText(text.size()));
  ASSIGN_OR_RETURN(const auto range, Range(text, a, "count"));
  if (range.first > range.second) return JinjaValue(int64_t{0});
  const std::string_view part = text.view().substr(range.first, range.second - range.first);
  if (wanted.empty()) return JinjaValue(CountCodePoints(part) + 1);
  int64_t count = 0;
  for (size_t at = part.find(wanted.view()); at != std::string_view::npos;
       at = part.find(wanted.view(), at + wanted.size())) {
    ++count;
  }
  return JinjaValue(count);
}

JinjaResult Replace(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("replace", args, {"old", "new", "count"}, 2, &a));
  ASSIGN_OR_RETURN(const Text from, TextArg(*a[0], "replace"));
  ASSIGN_OR_RETURN(const Text to, TextArg(*a[1], "replace"));
  ASSIGN_OR_RETURN(const int64_t count, IntArg(a[2], -1, "replace"));
  ASSIGN_OR_RETURN(Text replaced, ReplaceText(run, text, from, to, count));
  return JinjaValue(std::move(replaced));
}

JinjaResult Join(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("join", args, {"iterable"}, 1, &a));
  if (a[0]->is_undefined()) return JinjaValue(Text());
  ASSIGN_OR_RETURN(const std::vector<JinjaValue> items, run.Items(*a[0]));
  JinjaTextBuilder builder;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_text()) {
      return InvalidArgumentError("sequence item {}: expected str instance, {} found", i,
                                  items[i].TypeName());
    }
    RETURN_IF_ERROR(run.Charge(static_cast<int64_t>(items[i].as_text()->size() / 16)));
    RETURN_IF_ERROR(run.ChargeText(text.size()));
    if (i > 0) builder.Append(text);
    builder.Append(text.is_markup() ? EscapeJinjaHtml(*items[i].as_text()) : *items[i].as_text());
    if (builder.size() > run.options().max_output_bytes) return run.ChargeText(builder.size());
  }
  return JinjaValue(builder.Build());
}

// isdigit and its kind: true when there is a code point and `holds` for all.
template <bool (*holds)(char32_t)>
JinjaResult All(JinjaRun& run, const Text& text, const Args&) {
  RETURN_IF_ERROR(run.ChargeText(4 * text.size()));
  const std::string_view view = text.view();
  for (size_t at = 0; at < view.size(); at += Utf8LengthAt(view, at)) {
    if (!holds(CodePointAt(view, at))) return JinjaValue(false);
  }
  return JinjaValue(!view.empty());
}

bool IsAlphanumeric(char32_t c) { return IsAlphabetic(c) || IsNumeric(c); }

JinjaResult IsUpper(JinjaRun& run, const Text& text, const Args&) {
  RETURN_IF_ERROR(run.ChargeText(4 * text.size()));
  return JinjaValue(IsTextUpper(text.view()));
}
JinjaResult IsLower(JinjaRun& run, const Text& text, const Args&) {
  RETURN_IF_ERROR(run.ChargeText(4 * text.size()));
  return JinjaValue(IsTextLower(text.view()));
}

template <bool (*holds)(char32_t)>
JinjaResult EmptyOrAll(JinjaRun& run, const Text& text, const Args& args) {
  if (text.empty()) return JinjaValue(true);
  return All<holds>(run, text, args);
}

bool IsAscii(char32_t c) { return c < 0x80; }

// Capitals where words begin, small letters after them, and a letter at all.
JinjaResult IsTitle(JinjaRun& run, const Text& text, const Args&) {
  RETURN_IF_ERROR(run.ChargeText(4 * text.size()));
  const std::string_view view = text.view();
  bool any = false;
  bool in_word = false;
  for (size_t at = 0; at < view.size(); at += Utf8LengthAt(view, at)) {
    const char32_t c = CodePointAt(view, at);
    if (IsCased(c) && IsLowercase(c) != in_word) return JinjaValue(false);
    in_word = IsCased(c);
    any |= in_word;
  }
  return JinjaValue(any);
}

enum class Side { kLeft, kRight, kBoth };

// ljust, rjust and center: `side` says where the text ends up (kBoth: in the middle).
template <Side side>
JinjaResult Justify(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("center", args, {"width", "fillchar"}, 1, &a));
  ASSIGN_OR_RETURN(const int64_t width, IntArg(a[0], 0, "center"));
  Text fill(" ");
  if (a[1] != nullptr) {
    ASSIGN_OR_RETURN(fill, TextArg(*a[1], "center"));
  }
  if (CountCodePoints(fill.view()) != 1) {
    return InvalidArgumentError("the fill character must be exactly one character long");
  }
  const int64_t missing = width - CountCodePoints(text.view());
  if (missing <= 0) return JinjaValue(text);
  RETURN_IF_ERROR(run.Charge(missing));
  RETURN_IF_ERROR(run.ChargeText(text.size() + fill.size() * missing));
  int64_t before = side == Side::kLeft ? 0 : missing;
  if (side == Side::kBoth) before = missing / 2 + (missing & width & 1);
  JinjaTextBuilder builder;
  for (int64_t i = 0; i < before; ++i) builder.Append(fill);
  builder.Append(text);
  for (int64_t i = before; i < missing; ++i) builder.Append(fill);
  return JinjaValue(builder.Build());
}

JinjaResult ZeroFill(JinjaRun& run, const Text& text, const Args& args) {
  ArgPointers a;
  RETURN_IF_ERROR(BindJinjaArgs("zfill", args, {"width"}, 1, &a));
  ASSIGN_OR_RETURN(const int64_t width, IntArg(a[0], 0, "zfill"));
  const int64_t missing = width - CountCodePoints(text.view());
  if (missing <= 0) return JinjaValue(text);
  RETURN_IF_ERROR(run.ChargeText(text.size() + missing));
  const size_t sign = !text.empty() && (text.view()[0] == '-' || text.view()[0] == '+');
  JinjaTextBuilder builder;
  builder.Append(text, 0, sign);
  builder.Append(std::string(missing, '0'));
  builder.Append(text, sign, text.size());
  return JinjaValue(builder.Build());
}

// As MarkupSafe 3 has it: on markup the result is markup, and the text that is put in (the second
// argument of replace, center, ljust and rjust) gets escaped.
template <JinjaTextMethod method>
JinjaResult Marked(JinjaRun& run, const Text& text, const Args& args) {
  if (!text.is_markup()) return method(run, text, args);
  Args escaped = args;
  if (args.positional.size() > 1 && args.positional[1].is_text()) {
    const Text& inserted = *args.positional[1].as_text();
    RETURN_IF_ERROR(run.ChargeText(5 * inserted.size()));
    escaped.positional[1] = JinjaValue(EscapeJinjaHtml(inserted));
  }
  ASSIGN_OR_RETURN(const JinjaValue result, method(run, text, escaped));
  return JinjaValue(result.as_text()->AsMarkup());
}

struct Method {
  std::string_view name;
  JinjaTextMethod call;
};

constexpr Method kMethods[] = {
    {"capitalize", Marked<Mapped<PythonCapitalize>>},
    {"casefold", Marked<Mapped<PythonCaseFold>>},
    {"center", Marked<Justify<Side::kBoth>>},
    {"count", Count},
    {"endswith", Affix<false>},
    {"find", Find<false, false>},
    {"format", FormatMethod},
    {"index", Find<false, true>},
    {"isalnum", All<IsAlphanumeric>},
    {"isalpha", All<IsAlphabetic>},
    {"isascii", EmptyOrAll<IsAscii>},
    {"isdecimal", All<IsDecimal>},
    {"isdigit", All<IsDigitCharacter>},
    {"islower", IsLower},
    {"isnumeric", All<IsNumeric>},
    {"isprintable", EmptyOrAll<IsPrintable>},
    {"isspace", All<IsPythonSpace>},
    {"istitle", IsTitle},
    {"isupper", IsUpper},
    {"join", Marked<Join>},
    {"ljust", Marked<Justify<Side::kLeft>>},
    {"lower", Marked<Mapped<PythonLower>>},
    {"lstrip", Marked<Strip<true, false>>},
    {"partition", Partition<false>},
    {"removeprefix", Marked<RemoveAffix<true>>},
    {"removesuffix", Marked<RemoveAffix<false>>},
    {"replace", Marked<Replace>},
    {"rfind", Find<true, false>},
    {"rindex", Find<true, true>},
    {"rjust", Marked<Justify<Side::kRight>>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Marked<Strip<false, true>>},
    {"split", Split<false>},
    {"splitlines", SplitLines},
    {"startswith", Affix<true>},
    {"strip", Marked<Strip<true, true>>},
    {"swapcase", Marked<Mapped<PythonSwapCase>>},
    {"title", Marked<Mapped<PythonTitle>>},
    {"upper", Marked<Mapped<PythonUpper>>},
    {"zfill", Marked<ZeroFill>},
};

}  // namespace

JinjaTextMethod FindJinjaTextMethod(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                   [&](const Method& method) { return method.name == name; });
  return found == std::end(kMethods) ? nullptr : found->call;
}

}  // namespace tokenbutler
