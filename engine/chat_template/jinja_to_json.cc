#include <cmath>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_sort.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JinjaJsonStyle& style) : style_(style) {}

  absl::Status Write(const JinjaValue& value) {
    if (const JinjaText* text = value.as_text()) {
      WriteString(*text);
      return absl::OkStatus();
    }
    if (const JinjaDict* dict = value.as_dict()) return WriteObject(*dict);
    const JinjaList* list = value.as_list();
    if (list != nullptr &&
        (list->flavor == JinjaList::Flavor::kList || list->flavor == JinjaList::Flavor::kTuple)) {
      return WriteArray(*list);
    }
    ASSIGN_OR_RETURN(const std::string scalar, Scalar(value));
    out_.Append(scalar);
    return absl::OkStatus();
  }

  JinjaText Take() { return out_.Build(); }

 private:
  static absl::StatusOr<std::string> Scalar(const JinjaValue& value) {
    if (value.is_none()) return "null";
    if (const bool* boolean = value.as_bool()) return *boolean ? "true" : "false";
    if (const double* number = value.as_float()) {
      if (std::isnan(*number)) return "NaN";
      if (std::isinf(*number)) return *number > 0 ? "Infinity" : "-Infinity";
      return PythonFloatRepr(*number);
    }
    if (const std::optional<int64_t> number = value.as_int()) return std::to_string(*number);
    return InvalidArgumentError("Object of type {} is not JSON serializable", value.TypeName());
  }

  std::string Escape(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    const auto code = static_cast<uint32_t>(c);
    if (code < 0x20 || (style_.ensure_ascii && code > 0x7E && code < 0x10000)) {
      return fmt::format("\\u{:04x}", code);
    }
    if (style_.ensure_ascii && code >= 0x10000) {
      return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                         0xDC00 + ((code - 0x10000) & 0x3FF));
    }
    return "";
  }

  void WriteString(const JinjaText& text) {
    out_.Append("\"");
    const std::string_view view = text.view();
    size_t plain = 0;
    for (size_t at = 0; at < view.size();) {
      const size_t length = Utf8LengthAt(view, at);
      const std::string escape = Escape(CodePointAt(view, at));
      if (!escape.empty()) {
        out_.Append(text, plain, at);
        out_.Append(escape);
        plain = at + length;
      }
      at += length;
    }
    out_.Append(text, plain, view.size());
    out_.Append("\"");
  }

  void BreakLine() {
    if (!style_.indent.has_value()) return;
    out_.Append("\n");
    for (int i = 0; i < level_; ++i) out_.Append(*style_.indent);
  }

  void Separate(bool first) {
    if (!first) out_.Append(style_.item_separator);
    BreakLine();
  }

  absl::Status WriteArray(const JinjaList& list) {
    out_.Append("[");
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      Separate(i == 0);
      RETURN_IF_ERROR(Write(list.items[i]));
    }
    --level_;
    if (!list.items.empty()) BreakLine();
    out_.Append("]");
    return absl::OkStatus();
  }

  absl::Status WriteObject(const JinjaDict& dict) {
    std::vector<const std::pair<JinjaValue, JinjaValue>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      RETURN_IF_ERROR(StableSort(
          &entries, [](const auto* a, const auto* b) { return JinjaLess(a->first, b->first); }));
    }
    out_.Append("{");
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      Separate(i == 0);
      const JinjaValue& key = entries[i]->first;
      if (const JinjaText* text = key.as_text()) {
        WriteString(*text);
      } else {
        const absl::StatusOr<std::string> scalar = Scalar(key);
        if (!scalar.ok()) {
          return InvalidArgumentError("keys must be str, int, float, bool or None, not {}",
                                      key.TypeName());
        }
        out_.Append(fmt::format("\"{}\"", *scalar));
      }
      out_.Append(style_.key_separator);
      RETURN_IF_ERROR(Write(entries[i]->second));
    }
    --level_;
    if (!entries.empty()) BreakLine();
    out_.Append("}");
    return absl::OkStatus();
  }

  const JinjaJsonStyle& style_;
  JinjaTextBuilder out_;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<JinjaText> JinjaToJson(const JinjaValue& value, const JinjaJsonStyle& style) {
  JsonWriter writer(style);
  RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace tokenbutler
