#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tokenbutler {

// Byte ranges [begin, end), ascending, disjoint and not adjacent.
using ByteSpans = std::vector<std::pair<size_t, size_t>>;

// A template's string: immutable UTF-8 that remembers which of its bytes came from the input (a
// message, a tool) and not from the template. Cheap to copy.
class JinjaText {
 public:
  JinjaText() : JinjaText(std::string()) {}
  // Wholly template text, or wholly content.
  explicit JinjaText(std::string bytes, bool from_content = false);
  JinjaText(std::string bytes, ByteSpans content);

  std::string_view view() const { return rep_->bytes; }
  size_t size() const { return rep_->bytes.size(); }
  bool empty() const { return rep_->bytes.empty(); }
  const ByteSpans& content() const { return rep_->content; }
  bool has_content() const { return !rep_->content.empty(); }

  // Bytes [begin, begin + length), cut at the end like string_view::substr. A part of
  // markup is markup.
  JinjaText Slice(size_t begin, size_t length = std::string_view::npos) const;

  // Markup (after |safe or |escape): what is added to it gets escaped, as MarkupSafe does.
  bool is_markup() const { return rep_->markup; }
  JinjaText AsMarkup() const;

 private:
  struct Rep {
    std::string bytes;
    ByteSpans content;
    bool markup = false;
  };
  explicit JinjaText(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// Puts a JinjaText together piece by piece.
class JinjaTextBuilder {
 public:
  void Append(const JinjaText& text) { Append(text, 0, text.size()); }
  // Bytes [begin, end) of `text`. REQUIRES: begin <= end <= text.size().
  void Append(const JinjaText& text, size_t begin, size_t end);
  void Append(std::string_view bytes, bool from_content = false);

  size_t size() const { return bytes_.size(); }
  JinjaText Build();
  std::string TakeBytes() { return std::move(bytes_); }
  ByteSpans TakeContent() { return std::move(content_); }

 private:
  void AddContent(size_t begin, size_t end);

  std::string bytes_;
  ByteSpans content_;
};

}  // namespace tokenbutler
