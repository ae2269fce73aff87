#include "engine/chat_template/jinja_text.h"

#include <algorithm>

namespace tokenbutler {

JinjaText::JinjaText(std::string bytes, bool from_content) {
  ByteSpans content;
  if (from_content && !bytes.empty()) content.emplace_back(0, bytes.size());
  rep_ = std::make_shared<Rep>(Rep{std::move(bytes), std::move(content)});
}

JinjaText::JinjaText(std::string bytes, ByteSpans content)
    : rep_(std::make_shared<Rep>(Rep{std::move(bytes), std::move(content)})) {}

JinjaText JinjaText::Slice(size_t begin, size_t length) const {
  begin = std::min(begin, size());
  const size_t end = begin + std::min(length, size() - begin);
  if (begin == 0 && end == size()) return *this;
  JinjaTextBuilder builder;
  builder.Append(*this, begin, end);
  return is_markup() ? builder.Build().AsMarkup() : builder.Build();
}

JinjaText JinjaText::AsMarkup() const {
  if (is_markup()) return *this;
  return JinjaText(std::make_shared<Rep>(Rep{rep_->bytes, rep_->content, true}));
}

void JinjaTextBuilder::Append(const JinjaText& text, size_t begin, size_t end) {
  const size_t offset = bytes_.size();
  bytes_.append(text.view().substr(begin, end - begin));
  const ByteSpans& spans = text.content();
  auto span = std::upper_bound(spans.begin(), spans.end(), begin,
                               [](size_t at, const auto& s) { return at < s.second; });
  for (; span != spans.end() && span->first < end; ++span) {
    AddContent(offset + std::max(span->first, begin) - begin,
               offset + std::min(span->second, end) - begin);
  }
}

void JinjaTextBuilder::Append(std::string_view bytes, bool from_content) {
  const size_t offset = bytes_.size();
  bytes_.append(bytes);
  if (from_content) AddContent(offset, bytes_.size());
}

void JinjaTextBuilder::AddContent(size_t begin, size_t end) {
  if (begin == end) return;
  if (!content_.empty() && content_.back().second == begin) {
    content_.back().second = end;
  } else {
    content_.emplace_back(begin, end);
  }
}

JinjaText JinjaTextBuilder::Build() { return JinjaText(std::move(bytes_), std::move(content_)); }

}  // namespace tokenbutler
