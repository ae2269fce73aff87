// str.format.

#include <algorithm>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_number_format.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_percent_format.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_filters.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

bool IsDigits(std::string_view text) {
  return !text.empty() && text.size() < 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// [[fill]align][sign][#][0][width][,][.precision][type]
absl::StatusOr<JinjaFormatSpec> ParseSpec(std::string_view text) {
  JinjaFormatSpec spec;
  const std::string_view whole = text;
  const auto skip = [&](char c) {
    if (text.empty() || text[0] != c) return false;
    text.remove_prefix(1);
    return true;
  };
  const auto number = [&](int* out) {
    size_t length = 0;
    while (length < text.size() && text[length] >= '0' && text[length] <= '9') ++length;
    if (length == 0 || length > 5) return length == 0;
    *out = std::stoi(std::string(text.substr(0, length)));
    text.remove_prefix(length);
    return *out <= kMaxJinjaFormatWidth;
  };
  constexpr std::string_view kAligns = "<>^=";
  if (!text.empty()) {
    const size_t length = Utf8LengthAt(text, 0);
    if (text.size() > length && kAligns.find(text[length]) != std::string_view::npos) {
      spec.fill = CodePointAt(text, 0);
      spec.align = text[length];
      text.remove_prefix(length + 1);
    } else if (kAligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  for (char sign : {'+', '-', ' '}) {
    if (skip(sign)) {
      spec.sign = sign;
      break;
    }
  }
  spec.alternate = skip('#');
  if (skip('0') && spec.align == '\0') {
    spec.fill = U'0';
    spec.align = '=';
  }
  bool valid = number(&spec.width);
  spec.grouping = skip(',');
  if (skip('.')) {
    spec.precision = 0;
    valid = valid && !text.empty() && number(&spec.precision);
  }
  if (!text.empty() && std::string_view("dxXobeEfFgG%s").find(text[0]) != std::string_view::npos) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (valid && text.empty()) return spec;
  return UnimplementedError("the format specification '{}' is not supported", whole);
}

class BraceFormatter {
 public:
  BraceFormatter(JinjaRun* run, const JinjaText& format, const JinjaArgs& args)
      : run_(run), format_(format), view_(format.view()), args_(args) {}

  JinjaResult Run() {
    while (at_ < view_.size()) {
      const size_t brace = std::min(view_.find_first_of("{}", at_), view_.size());
      out_.Append(format_, at_, brace);
      at_ = brace;
      if (at_ == view_.size()) break;
      if (view_.substr(at_, 2) == "{{" || view_.substr(at_, 2) == "}}") {
        out_.Append(format_, at_, at_ + 1);
        at_ += 2;
        continue;
      }
      if (view_[at_] == '}') {
        return InvalidArgumentError("single '}}' encountered in format string");
      }
      RETURN_IF_ERROR(Field());
      if (out_.size() > run_->options().max_output_bytes) break;
    }
    RETURN_IF_ERROR(run_->ChargeText(out_.size()));
    const JinjaText text = out_.Build();
    return JinjaValue(format_.is_markup() ? text.AsMarkup() : text);
  }

 private:
  absl::Status Field() {
    const size_t end = view_.find('}', at_);
    if (end == std::string_view::npos) {
      return InvalidArgumentError("single '{{' encountered in format string");
    }
    std::string_view field = view_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    if (field.find('{') != std::string_view::npos) {
      return UnimplementedError("nested fields in a format are not supported");
    }
    std::string_view spec_text;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec_text = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      const std::string_view name = field.substr(mark + 1);
      if (name != "r" && name != "s") {
        return UnimplementedError("the conversion '!{}' in a format is not supported", name);
      }
      conversion = name[0];
      field = field.substr(0, mark);
    }
    ASSIGN_OR_RETURN(JinjaValue value, Lookup(field));
    if (conversion == 's') value = JinjaValue(JinjaStr(value));
    if (conversion == 'r') value = JinjaValue(JinjaRepr(value));
    ASSIGN_OR_RETURN(const JinjaFormatSpec spec, ParseSpec(spec_text));
    if (!format_.is_markup()) return Append(value, spec, !spec_text.empty(), &out_);
    if (value.is_text() && value.as_text()->is_markup() && !spec_text.empty()) {
      return InvalidArgumentError("unsupported format specification for Markup");
    }
    JinjaTextBuilder padded;
    RETURN_IF_ERROR(Append(value, spec, !spec_text.empty(), &padded));
    const bool markup = value.is_text() && value.as_text()->is_markup();
    const JinjaText text = padded.Build();
    out_.Append(markup ? text : EscapeJinjaHtml(text));
    return absl::OkStatus();
  }

  absl::StatusOr<JinjaValue> First(std::string_view name) {
    const bool automatic = name.empty();
    if (!automatic && !IsDigits(name)) {
      for (const auto& [key, value] : args_.named) {
        if (key == name) return value;
      }
      return InvalidArgumentError("no argument '{}' for the format", name);
    }
    if ((automatic && numbered_) || (!automatic && next_ > 0)) {
      return InvalidArgumentError("a format cannot mix {{}} and numbered fields");
    }
    numbered_ |= !automatic;
    const size_t index = automatic ? next_++ : std::stoul(std::string(name));
    if (index < args_.positional.size()) return args_.positional[index];
    return InvalidArgumentError("no argument {} for the format", index);
  }

  JinjaResult Lookup(std::string_view field) {
    size_t at = std::min(field.find_first_of(".["), field.size());
    ASSIGN_OR_RETURN(JinjaValue value, First(field.substr(0, at)));
    while (at < field.size()) {
      if (field[at] == '.') {
        const size_t end = std::min(field.find_first_of(".[", at + 1), field.size());
        ASSIGN_OR_RETURN(value, JinjaAttribute(value, field.substr(at + 1, end - at - 1)));
        at = end;
        continue;
      }
      const size_t end = field.find(']', at);
      if (field[at] != '[' || end == std::string_view::npos) {
        return InvalidArgumentError("a format field '{}' that cannot be read", field);
      }
      const std::string_view key = field.substr(at + 1, end - at - 1);
      ASSIGN_OR_RETURN(
          value, JinjaItem(value, IsDigits(key) ? JinjaValue(int64_t{std::stol(std::string(key))})
                                                : JinjaValue::Text(key)));
      at = end + 1;
    }
    return value;
  }

  absl::Status Append(const JinjaValue& value, const JinjaFormatSpec& spec, bool has_spec,
                      JinjaTextBuilder* out) {
    const bool is_number = value.as_number().has_value() && !(value.is_bool() && !has_spec);
    if (is_number && has_spec && spec.type != 's') {
      ASSIGN_OR_RETURN(std::string digits, FormatJinjaNumber(value, spec));
      PadJinjaText(JinjaText(std::move(digits)), spec, '>', out);
      return absl::OkStatus();
    }
    if (has_spec && !value.is_text() && !value.is_undefined()) {
      return InvalidArgumentError("unsupported format string passed to {}.__format__",
                                  value.TypeName());
    }
    if (spec.type != '\0' && spec.type != 's') {
      return InvalidArgumentError("unknown format code '{}' for object of type 'str'", spec.type);
    }
    JinjaText text = JinjaStr(value);
    if (spec.precision >= 0) text = text.Slice(0, OffsetOfCodePoint(text.view(), spec.precision));
    PadJinjaText(text, spec, '<', out);
    return absl::OkStatus();
  }

  JinjaRun* run_;
  const JinjaText& format_;
  std::string_view view_;
  const JinjaArgs& args_;
  size_t at_ = 0;
  size_t next_ = 0;
  bool numbered_ = false;
  JinjaTextBuilder out_;
};

}  // namespace

JinjaResult FormatMethod(JinjaRun& run, const JinjaText& format, const JinjaArgs& args) {
  RETURN_IF_ERROR(run.ChargeText(format.size()));
  return BraceFormatter(&run, format, args).Run();
}

}  // namespace tokenbutler
