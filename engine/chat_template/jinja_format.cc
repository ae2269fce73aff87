#include "engine/chat_template/jinja_format.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

using Builder = JinjaTextBuilder;

void AppendRepr(const JinjaValue& value, int depth, Builder* out);

// repr() of a string: single quotes unless the text has those and no double ones.
void AppendQuoted(const JinjaText& text, Builder* out) {
  const std::string_view view = text.view();
  const bool has_single = view.find('\'') != std::string_view::npos;
  const char quote = has_single && view.find('"') == std::string_view::npos ? '"' : '\'';
  out->Append(std::string_view(&quote, 1));
  size_t plain = 0;  // start of the run that is copied as it is
  for (size_t at = 0; at < view.size();) {
    const size_t length = Utf8LengthAt(view, at);
    const char32_t c = CodePointAt(view, at);
    std::string escape;
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      escape = fmt::format("\\{}", static_cast<char>(c));
    } else if (c == '\n') {
      escape = "\\n";
    } else if (c == '\r') {
      escape = "\\r";
    } else if (c == '\t') {
      escape = "\\t";
    } else if (!IsPrintable(c)) {
      const auto code = static_cast<uint32_t>(c);
      escape = code < 0x100     ? fmt::format("\\x{:02x}", code)
               : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                : fmt::format("\\U{:08x}", code);
    }
    if (!escape.empty()) {
      out->Append(text, plain, at);
      out->Append(escape);
      plain = at + length;
    }
    at += length;
  }
  out->Append(text, plain, view.size());
  out->Append(std::string_view(&quote, 1));
}

void AppendItems(const std::vector<JinjaValue>& items, int depth, Builder* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out->Append(", ");
    AppendRepr(items[i], depth, out);
  }
}

void AppendListRepr(const JinjaList& list, int depth, Builder* out) {
  using Flavor = JinjaList::Flavor;
  switch (list.flavor) {
    case Flavor::kTuple:
      out->Append("(");
      AppendItems(list.items, depth, out);
      return out->Append(list.items.size() == 1 ? ",)" : ")");
    case Flavor::kRange:
      out->Append(fmt::format("range({}, {}", list.range_start, list.range_stop));
      if (list.range_step != 1) out->Append(fmt::format(", {}", list.range_step));
      return out->Append(")");
    case Flavor::kGenerator:
      return out->Append("<generator object>");
    case Flavor::kList:
    case Flavor::kKeys:
    case Flavor::kValues:
    case Flavor::kItems:
      break;
  }
  const bool is_view = list.flavor != Flavor::kList;
  if (is_view) {
    out->Append(list.flavor == Flavor::kKeys     ? "dict_keys("
                : list.flavor == Flavor::kValues ? "dict_values("
                                                 : "dict_items(");
  }
  out->Append("[");
  AppendItems(list.items, depth, out);
  out->Append(is_view ? "])" : "]");
}

template <typename Entries>
void AppendEntries(const Entries& entries, int depth, Builder* out) {
  out->Append("{");
  bool first = true;
  for (const auto& [key, value] : entries) {
    if (!first) out->Append(", ");
    first = false;
    if constexpr (std::is_same_v<std::decay_t<decltype(key)>, std::string>) {
      AppendQuoted(JinjaText(key), out);
    } else {
      AppendRepr(key, depth, out);
    }
    out->Append(": ");
    AppendRepr(value, depth, out);
  }
  out->Append("}");
}

void AppendRepr(const JinjaValue& value, int depth, Builder* out) {
  // Only namespaces that hold each other get here: what is built at once is never this deep.
  if (depth > 2 * kMaxJinjaValueDepth) return out->Append("...");
  if (const JinjaText* text = value.as_text()) return AppendQuoted(*text, out);
  if (const JinjaList* list = value.as_list()) return AppendListRepr(*list, depth + 1, out);
  if (const JinjaDict* dict = value.as_dict()) {
    return AppendEntries(dict->entries, depth + 1, out);
  }
  if (const JinjaNamespace* space = value.as_namespace()) {
    out->Append("<Namespace ");
    AppendEntries(space->attributes, depth + kMaxJinjaValueDepth / 4, out);
    return out->Append(">");
  }
  if (value.is_none()) return out->Append("None");
  if (value.is_undefined()) return out->Append("Undefined");
  if (const bool* boolean = value.as_bool()) return out->Append(*boolean ? "True" : "False");
  if (const double* number = value.as_float()) return out->Append(PythonFloatRepr(*number));
  if (const std::optional<int64_t> number = value.as_int()) {
    return out->Append(std::to_string(*number));
  }
  if (const JinjaLoop* loop = value.as_loop()) {
    return out->Append(fmt::format("<LoopContext {}/{}>", loop->index0 + 1, loop->items.size()));
  }
  out->Append(value.as_function()->repr);
}

}  // namespace

std::string PythonFloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, end - buffer);
  const size_t e = scientific.find('e');
  const int exponent = std::atoi(std::string(scientific.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const std::string fixed(
      buffer,
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr - buffer);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

JinjaText JinjaStr(const JinjaValue& value) {
  if (const JinjaText* text = value.as_text()) return *text;
  if (value.is_undefined()) return JinjaText();
  return JinjaRepr(value);
}

JinjaText JinjaRepr(const JinjaValue& value) {
  Builder builder;
  AppendRepr(value, 0, &builder);
  return builder.Build();
}

}  // namespace tokenbutler
