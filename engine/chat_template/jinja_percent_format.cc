#include "engine/chat_template/jinja_percent_format.h"

#include <algorithm>
#include <cmath>

#include "engine/chat_template/jinja_format.h"
#include "engine/chat_template/jinja_number_format.h"
#include "engine/chat_template/jinja_operators.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_text_filters.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

// Walks over the directives of a %-format.
class PercentFormatter {
 public:
  PercentFormatter(JinjaRun* run, const JinjaText& format, const JinjaValue& values)
      : run_(run), format_(format), view_(format.view()), values_(values) {
    const JinjaList* list = values.as_list();
    is_tuple_ = list != nullptr && list->flavor == JinjaList::Flavor::kTuple;
  }

  JinjaResult Run() {
    while (at_ < view_.size()) {
      const size_t percent = std::min(view_.find('%', at_), view_.size());
      out_.Append(format_, at_, percent);
      at_ = percent;
      if (at_ < view_.size()) RETURN_IF_ERROR(Directive());
      if (out_.size() > run_->options().max_output_bytes) return run_->ChargeText(out_.size());
    }
    const bool all_used = is_tuple_ ? next_ >= values_.as_list()->items.size()
                                    : next_ > 0 || used_mapping_ || values_.as_dict() != nullptr;
    const JinjaList* list = values_.as_list();
    if (!all_used && !(list != nullptr && list->flavor == JinjaList::Flavor::kList)) {
      return InvalidArgumentError("not all arguments converted during string formatting");
    }
    RETURN_IF_ERROR(run_->ChargeText(out_.size()));
    const JinjaText text = out_.Build();
    return JinjaValue(format_.is_markup() ? text.AsMarkup() : text);
  }

 private:
  absl::StatusOr<JinjaValue> NextValue() {
    if (is_tuple_) {
      const std::vector<JinjaValue>& items = values_.as_list()->items;
      if (next_ < items.size()) return items[next_++];
    } else if (next_ == 0) {
      ++next_;
      return values_;
    }
    return InvalidArgumentError("not enough arguments for format string");
  }

  absl::StatusOr<int> Number() {
    if (at_ < view_.size() && view_[at_] == '*') {
      ++at_;
      ASSIGN_OR_RETURN(const JinjaValue value, NextValue());
      if (!value.as_int()) return InvalidArgumentError("* wants int");
      const int64_t number = *value.as_int();
      if (number < -kMaxJinjaFormatWidth || number > kMaxJinjaFormatWidth) {
        return InvalidArgumentError("a width of {} in a format", number);
      }
      return static_cast<int>(number);
    }
    int number = 0;
    for (; at_ < view_.size() && view_[at_] >= '0' && view_[at_] <= '9'; ++at_) {
      number = number * 10 + (view_[at_] - '0');
      if (number > kMaxJinjaFormatWidth) {
        return InvalidArgumentError("a width of {} or more in a format", number);
      }
    }
    return number;
  }

  absl::Status Directive() {
    ++at_;  // the percent sign
    JinjaValue value;
    bool has_value = false;
    if (at_ < view_.size() && view_[at_] == '(') {
      const size_t end = view_.find(')', at_);
      if (end == std::string_view::npos) return InvalidArgumentError("incomplete format key");
      if (values_.as_dict() == nullptr) return InvalidArgumentError("format requires a mapping");
      const std::string_view key = view_.substr(at_ + 1, end - at_ - 1);
      const JinjaValue* found = values_.as_dict()->Find(key);
      if (found == nullptr) return InvalidArgumentError("no key '{}' for the format", key);
      value = *found;
      has_value = used_mapping_ = true;
      at_ = end + 1;
    }
    JinjaFormatSpec spec;
    for (;
         at_ < view_.size() && std::string_view("-+ #0").find(view_[at_]) != std::string_view::npos;
         ++at_) {
      const char flag = view_[at_];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
      if (flag == '0') zero_ = true;
    }
    ASSIGN_OR_RETURN(spec.width, Number());
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (at_ < view_.size() && view_[at_] == '.') {
      ++at_;
      ASSIGN_OR_RETURN(spec.precision, Number());
      spec.precision = std::max(spec.precision, 0);
    }
    while (at_ < view_.size() &&
           std::string_view("hlL").find(view_[at_]) != std::string_view::npos) {
      ++at_;
    }
    if (at_ >= view_.size()) return InvalidArgumentError("incomplete format");
    spec.type = view_[at_++];
    const bool zero = std::exchange(zero_, false);
    if (spec.type == '%') {
      out_.Append("%");
      return absl::OkStatus();
    }
    if (!has_value) {
      ASSIGN_OR_RETURN(value, NextValue());
    }
    return Convert(value, spec, zero);
  }

  absl::Status Character(const JinjaValue& value, const JinjaFormatSpec& spec) {
    JinjaText character;
    if (const JinjaText* text = value.as_text()) {
      if (CountCodePoints(text->view()) != 1) return InvalidArgumentError("%c requires one letter");
      character = *text;
    } else if (const std::optional<int64_t> code = value.as_int()) {
      if (*code < 0 || *code > 0x10FFFF) {
        return InvalidArgumentError("%c of {}, must be in [0, 1114111]", *code);
      }
      if (*code >= 0xD800 && *code <= 0xDFFF) {
        return UnimplementedError("%c of {}, half a surrogate pair", *code);
      }
      std::string encoded;
      AppendCodePoint(static_cast<char32_t>(*code), &encoded);
      character = JinjaText(std::move(encoded));
    } else {
      return InvalidArgumentError("%c requires an int or one letter, not {}", value.TypeName());
    }
    PadJinjaText(character, spec, '>', &out_);
    return absl::OkStatus();
  }

  absl::Status Convert(const JinjaValue& value, JinjaFormatSpec spec, bool zero) {
    if (spec.type == 's' || spec.type == 'r') {
      JinjaText text = spec.type == 's' ? JinjaStr(value) : JinjaRepr(value);
      if (format_.is_markup()) text = EscapeJinjaHtml(text);
      if (spec.precision >= 0) {
        text = text.Slice(0, OffsetOfCodePoint(text.view(), spec.precision));
      }
      PadJinjaText(text, spec, '>', &out_);
      return absl::OkStatus();
    }
    if (value.is_undefined()) return JinjaUndefinedError(value);
    if (spec.type == 'c') return Character(value, spec);
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (std::string_view("dxXoeEfFgG").find(spec.type) == std::string_view::npos) {
      return UnimplementedError("the format directive '%{}' is not supported", spec.type);
    }
    JinjaValue number = value;
    if (spec.type == 'd' && value.is_float()) {
      if (!(std::abs(*value.as_float()) < 9e18)) return InvalidArgumentError("%d of a huge number");
      number = JinjaValue(static_cast<int64_t>(*value.as_float()));
    }
    ASSIGN_OR_RETURN(std::string digits, FormatJinjaNumber(number, spec));
    const bool integer = std::string_view("dxXo").find(spec.type) != std::string_view::npos;
    if (integer && spec.precision > 0) {
      const size_t first = digits.find_first_not_of("+- ");
      const auto missing = spec.precision - static_cast<int>(digits.size() - first);
      if (missing > 0) digits.insert(first, std::string(missing, '0'));
    }
    if (zero && spec.align == '\0') {
      spec.fill = U'0';
      spec.align = '=';
    }
    PadJinjaText(JinjaText(std::move(digits)), spec, '>', &out_);
    return absl::OkStatus();
  }

  JinjaRun* run_;
  const JinjaText& format_;
  std::string_view view_;
  const JinjaValue& values_;
  bool is_tuple_ = false;
  bool used_mapping_ = false;
  bool zero_ = false;
  size_t at_ = 0;
  size_t next_ = 0;
  JinjaTextBuilder out_;
};

}  // namespace

JinjaResult PercentFormat(JinjaRun& run, const JinjaText& format, const JinjaValue& values) {
  RETURN_IF_ERROR(run.ChargeText(format.size()));
  return PercentFormatter(&run, format, values).Run();
}

}  // namespace tokenbutler
