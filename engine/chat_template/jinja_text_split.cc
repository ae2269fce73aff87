#include "engine/chat_template/jinja_text_split.h"

#include <algorithm>

#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

bool IsSpaceAt(std::string_view text, size_t at) { return IsPythonSpace(CodePointAt(text, at)); }

std::vector<char32_t> CodePointsOf(std::string_view text) {
  std::vector<char32_t> code_points;
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) {
    code_points.push_back(CodePointAt(text, at));
  }
  std::sort(code_points.begin(), code_points.end());
  return code_points;
}

bool IsTextOfCase(std::string_view text, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool found = false;
  for (size_t at = 0; at < text.size(); at += Utf8LengthAt(text, at)) {
    const char32_t c = CodePointAt(text, at);
    if (other(c) || IsTitlecase(c)) return false;
    found |= wanted(c);
  }
  return found;
}

}  // namespace

JinjaText StripText(const JinjaText& text, const JinjaText* chars, bool left, bool right) {
  const std::string_view view = text.view();
  const std::vector<char32_t> set =
      chars == nullptr ? std::vector<char32_t>() : CodePointsOf(chars->view());
  const auto stripped = [&](size_t at) {
    const char32_t c = CodePointAt(view, at);
    return chars == nullptr ? IsPythonSpace(c) : std::binary_search(set.begin(), set.end(), c);
  };
  size_t begin = 0;
  size_t end = view.size();
  while (left && begin < end && stripped(begin)) begin += Utf8LengthAt(view, begin);
  while (right && end > begin) {
    const size_t length = Utf8LengthBefore(view, end);
    if (!stripped(end - length)) break;
    end -= length;
  }
  return text.Slice(begin, end - begin);
}

std::vector<JinjaText> SplitOnSpace(const JinjaText& text, int64_t max_splits, bool from_right) {
  const std::string_view view = text.view();
  std::vector<JinjaText> parts;
  if (!from_right) {
    size_t at = 0;
    while (true) {
      while (at < view.size() && IsSpaceAt(view, at)) at += Utf8LengthAt(view, at);
      if (at == view.size()) return parts;
      if (static_cast<int64_t>(parts.size()) == max_splits) break;
      const size_t begin = at;
      while (at < view.size() && !IsSpaceAt(view, at)) at += Utf8LengthAt(view, at);
      parts.push_back(text.Slice(begin, at - begin));
    }
    parts.push_back(text.Slice(at));
    return parts;
  }
  size_t end = view.size();
  while (true) {
    while (end > 0 && IsSpaceAt(view, end - Utf8LengthBefore(view, end))) {
      end -= Utf8LengthBefore(view, end);
    }
    if (end == 0) break;
    if (static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text.Slice(0, end));
      break;
    }
    const size_t last = end;
    while (end > 0 && !IsSpaceAt(view, end - Utf8LengthBefore(view, end))) {
      end -= Utf8LengthBefore(view, end);
    }
    parts.push_back(text.Slice(end, last - end));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<JinjaText> SplitOn(const JinjaText& text, std::string_view separator,
                               int64_t max_splits, bool from_right) {
  const std::string_view view = text.view();
  std::vector<JinjaText> parts;
  if (!from_right) {
    size_t begin = 0;
    while (static_cast<int64_t>(parts.size()) < max_splits) {
      const size_t at = view.find(separator, begin);
      if (at == std::string_view::npos) break;
      parts.push_back(text.Slice(begin, at - begin));
      begin = at + separator.size();
    }
    parts.push_back(text.Slice(begin));
    return parts;
  }
  size_t end = view.size();
  while (static_cast<int64_t>(parts.size()) < max_splits && end >= separator.size()) {
    const size_t at = view.rfind(separator, end - separator.size());
    if (at == std::string_view::npos) break;
    parts.push_back(text.Slice(at + separator.size(), end - at - separator.size()));
    end = at;
  }
  parts.push_back(text.Slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<JinjaText> SplitTextLines(const JinjaText& text, bool keep_ends) {
  const std::string_view view = text.view();
  std::vector<JinjaText> lines;
  size_t begin = 0;
  for (size_t at = 0; at < view.size();) {
    size_t length = Utf8LengthAt(view, at);
    if (!IsPythonLineBreak(CodePointAt(view, at))) {
      at += length;
      continue;
    }
    if (view.substr(at, 2) == "\r\n") length = 2;
    lines.push_back(text.Slice(begin, at - begin + (keep_ends ? length : 0)));
    at += length;
    begin = at;
  }
  if (begin < view.size()) lines.push_back(text.Slice(begin));
  return lines;
}

absl::StatusOr<JinjaText> ReplaceText(JinjaRun& run, const JinjaText& text, const JinjaText& from,
                                      const JinjaText& to, int64_t count) {
  const std::string_view view = text.view();
  RETURN_IF_ERROR(run.ChargeText(view.size()));
  JinjaTextBuilder builder;
  size_t copied = 0;
  size_t search = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    size_t at = 0;
    if (from.empty()) {
      // Python puts `to` before every character and at the end.
      if (done > 0) search += search < view.size() ? Utf8LengthAt(view, search) : 1;
      if (search > view.size()) break;
      at = search;
    } else {
      at = view.find(from.view(), search);
      if (at == std::string_view::npos) break;
      search = at + from.size();
    }
    RETURN_IF_ERROR(run.Charge(1 + static_cast<int64_t>(to.size() / 16)));
    builder.Append(text, copied, at);
    builder.Append(to);
    copied = at + from.size();
    if (builder.size() > run.options().max_output_bytes) break;
  }
  builder.Append(text, copied, view.size());
  RETURN_IF_ERROR(run.ChargeText(builder.size()));
  return builder.Build();
}

bool IsTextUpper(std::string_view text) { return IsTextOfCase(text, IsUppercase, IsLowercase); }
bool IsTextLower(std::string_view text) { return IsTextOfCase(text, IsLowercase, IsUppercase); }

}  // namespace tokenbutler
