#include "engine/chat_template/jinja_lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

using Kind = JinjaToken::Kind;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHexDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

std::string NormalizeNewlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
      continue;
    }
    out += '\n';
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  absl::StatusOr<std::vector<JinjaToken>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(LexTextAndTag());
    Emit(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool AtWord(std::string_view word) const { return rest().substr(0, word.size()) == word; }

  void Emit(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Skip(size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) line_ += source_[at_ + i] == '\n';
    at_ += bytes;
  }
  void SkipSpace() {
    while (at_ < source_.size() && IsPythonSpace(CodePointAt(source_, at_))) {
      Skip(Utf8LengthAt(source_, at_));
    }
  }
  size_t SpaceEnd(size_t at) const {
    while (at < source_.size() && IsPythonSpace(CodePointAt(source_, at))) {
      at += Utf8LengthAt(source_, at);
    }
    return at;
  }

  absl::Status Error(std::string_view what) const {
    return InvalidArgumentError("chat template line {}: {}", line_, what);
  }

  // The next "{{", "{%" or "{#".
  size_t FindTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return std::string::npos;
  }

  // Text before a tag, without the white space that the tag swallows. `sign` is '-', '+' or 0.
  std::string_view TextBefore(std::string_view text, char sign, bool is_print) const {
    if (sign == '-') {
      size_t end = text.size();
      while (end > 0) {
        const size_t length = Utf8LengthBefore(text, end);
        if (!IsPythonSpace(CodePointAt(text, end - length))) break;
        end -= length;
      }
      return text.substr(0, end);
    }
    if (sign == '+' || is_print) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text;
    for (size_t i = line_begin; i < text.size(); i += Utf8LengthAt(text, i)) {
      if (!IsPythonSpace(CodePointAt(text, i))) return text;
    }
    return text.substr(0, line_begin);
  }

  char SignAt(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  absl::Status LexTextAndTag() {
    const size_t tag = FindTag();
    const size_t text_end = tag == std::string::npos ? source_.size() : tag;
    const std::string_view text = std::string_view(source_).substr(at_, text_end - at_);
    if (tag == std::string::npos) {
      Emit(Kind::kText, std::string(text));
      at_ = source_.size();
      return absl::OkStatus();
    }
    const char sign = SignAt(tag + 2);
    const char type = source_[tag + 1];
    const std::string kept(TextBefore(text, sign, type == '{'));
    if (!kept.empty()) Emit(Kind::kText, kept);
    Skip(text_end - at_);
    if (type == '%') {
      if (const std::optional<size_t> body = RawBodyAt()) return LexRaw(*body);
    }
    Skip(2 + (sign != '\0'));
    line_starting_ = false;
    if (type == '#') return LexComment();
    Emit(type == '{' ? Kind::kPrintBegin : Kind::kTagBegin, "");
    return LexExpression(type == '{');
  }

  // Consumes "#}", "%}" with its sign when one is here. A '-' also takes the white space after it,
  // otherwise the newline after it goes, unless it has a '+' (or is "}}", which never takes one).
  bool SkipClosing(std::string_view closing) {
    const char sign = SignAt(at_);
    const size_t begin = at_ + (sign != '\0');
    if (std::string_view(source_).substr(begin, 2) != closing) return false;
    if (sign == '+' && closing == "}}") return false;
    Skip(begin + 2 - at_);
    const size_t before = at_;
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && closing != "}}" && at_ < source_.size() && source_[at_] == '\n') {
      Skip(1);
    }
    line_starting_ = at_ > before && source_[at_ - 1] == '\n';
    return true;
  }

  absl::Status LexComment() {
    while (at_ < source_.size()) {
      if (SkipClosing("#}")) return absl::OkStatus();
      Skip(1);
    }
    return Error("missing end of comment tag");
  }

  // At "{%": where the body begins if this is a raw tag.
  std::optional<size_t> RawBodyAt() const {
    size_t at = at_ + 2;
    at += SignAt(at) != '\0';
    at = SpaceEnd(at);
    if (source_.compare(at, 3, "raw") != 0) return std::nullopt;
    at = SpaceEnd(at + 3);
    if (source_.compare(at, 2, "%}") == 0) return at + 2;
    if (source_.compare(at, 3, "-%}") == 0) return SpaceEnd(at + 3);
    return std::nullopt;
  }

  absl::Status LexRaw(size_t body) {
    line_starting_ = source_[body - 1] == '\n';
    Skip(body - at_);
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      const char sign = SignAt(tag + 2);
      const size_t word = SpaceEnd(tag + 2 + (sign != '\0'));
      if (source_.compare(word, 6, "endraw") != 0) continue;
      const size_t after = SpaceEnd(word + 6);
      const size_t closing = after + (SignAt(after) != '\0');
      if (source_.compare(closing, 2, "%}") != 0) continue;
      const std::string kept(
          TextBefore(std::string_view(source_).substr(at_, tag - at_), sign, false));
      if (!kept.empty()) Emit(Kind::kText, kept);
      Skip(after - at_);
      SkipClosing("%}");
      return absl::OkStatus();
    }
    return Error("missing end of raw tag");
  }

  absl::Status LexExpression(bool is_print) {
    std::string brackets;
    while (true) {
      SkipSpace();
      if (brackets.empty() && SkipClosing(is_print ? "}}" : "%}")) {
        Emit(is_print ? Kind::kPrintEnd : Kind::kTagEnd, "");
        return absl::OkStatus();
      }
      if (at_ >= source_.size()) return Error("unexpected end of template inside a tag");
      RETURN_IF_ERROR(LexToken(&brackets));
    }
  }

  absl::Status LexToken(std::string* brackets) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return LexString(c);
    if (IsDigit(c)) return LexNumber();
    const char32_t code_point = CodePointAt(source_, at_);
    if (c == '_' || IsAlphabetic(code_point)) return LexName();
    return LexOperator(brackets);
  }

  absl::Status LexName() {
    size_t end = at_;
    while (end < source_.size()) {
      const char32_t c = CodePointAt(source_, end);
      if (c != '_' && !IsAlphabetic(c) && !IsNumeric(c)) break;
      end += Utf8LengthAt(source_, end);
    }
    Emit(Kind::kName, source_.substr(at_, end - at_));
    Skip(end - at_);
    return absl::OkStatus();
  }

  // Digits with single underscores between them.
  template <typename IsPart>
  size_t DigitsEnd(size_t at, IsPart is_part) const {
    while (at < source_.size()) {
      if (is_part(source_[at])) {
        ++at;
      } else if (source_[at] == '_' && at + 1 < source_.size() && is_part(source_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  absl::Status LexNumber() {
    size_t end = at_;
    const char base = at_ + 1 < source_.size() ? source_[at_ + 1] | 0x20 : '\0';
    if (source_[at_] == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      end = DigitsEnd(at_ + 2, IsHexDigit);
      if (end == at_ + 2) return Error("a number without digits");
      return EmitNumber(Kind::kInteger, end);
    }
    end = DigitsEnd(at_, IsDigit);
    bool is_float = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        IsDigit(source_[end + 1])) {
      end = DigitsEnd(end + 1, IsDigit);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] | 0x20) == 'e') {
      size_t digits = end + 1;
      digits += SignAt(digits) != '\0';
      if (digits < source_.size() && IsDigit(source_[digits])) {
        end = DigitsEnd(digits, IsDigit);
        is_float = true;
      }
    }
    return EmitNumber(is_float ? Kind::kFloat : Kind::kInteger, end);
  }

  absl::Status EmitNumber(Kind kind, size_t end) {
    std::string digits = source_.substr(at_, end - at_);
    std::erase(digits, '_');
    Emit(kind, std::move(digits));
    Skip(end - at_);
    return absl::OkStatus();
  }

  absl::Status LexOperator(std::string* brackets) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    std::string op;
    for (std::string_view two : kTwo) {
      if (AtWord(two)) op = two;
    }
    const char c = source_[at_];
    if (op.empty() && kOne.find(c) != std::string_view::npos) op = std::string(1, c);
    if (op.empty()) {
      return Error(fmt::format("unexpected character '{}'",
                               source_.substr(at_, Utf8LengthAt(source_, at_))));
    }
    if (c == '(') brackets->push_back(')');
    if (c == '[') brackets->push_back(']');
    if (c == '{') brackets->push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty() || brackets->back() != c) {
        return Error(fmt::format("unexpected '{}'", c));
      }
      brackets->pop_back();
    }
    Emit(Kind::kOperator, op);
    Skip(op.size());
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("unexpected end of a string");
    ASSIGN_OR_RETURN(std::string text, Unescape(source_.substr(at_ + 1, end - at_ - 1)));
    Emit(Kind::kString, std::move(text));
    Skip(end + 1 - at_);
    return absl::OkStatus();
  }

  // Python's escapes in a string literal; an unknown one stays with its backslash.
  absl::StatusOr<std::string> Unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kNames = "abfnrtv\\'\"";
      constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t index = kNames.find(c); index != std::string_view::npos) {
        out += kValues[index];
      } else if (c == '\n') {
        continue;  // a line that goes on
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        ASSIGN_OR_RETURN(const char32_t code, HexCode(text.substr(i + 1), length));
        AppendCodePoint(code, &out);
        i += length;
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        size_t length = 0;
        while (length < 3 && i + length < text.size() && text[i + length] >= '0' &&
               text[i + length] <= '7') {
          code = code * 8 + (text[i + length++] - '0');
        }
        AppendCodePoint(code, &out);
        i += length - 1;
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  absl::StatusOr<char32_t> HexCode(std::string_view digits, size_t length) const {
    digits = digits.substr(0, length);
    if (digits.size() < length || !std::all_of(digits.begin(), digits.end(), IsHexDigit)) {
      return Error("an incomplete \\x, \\u or \\U escape in a string");
    }
    const auto code = static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16));
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return Error("an escape in a string that is no Unicode character");
    }
    return code;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<JinjaToken> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<JinjaToken>> LexJinja(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace tokenbutler
