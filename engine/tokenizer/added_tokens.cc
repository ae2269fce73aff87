#include "engine/tokenizer/added_tokens.h"

#include <algorithm>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

// Start of the code point that ends at `end`. REQUIRES: end > 0, well-formed UTF-8.
size_t PreviousCodePoint(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool HasClassAt(std::string_view text, size_t position, uint8_t classes) {
  return (ClassesOf(ReadUtf8(text, position).code_point) & classes) != 0;
}

bool IsInsideWord(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && HasClassAt(text, PreviousCodePoint(text, begin), kWordClass)) ||
         (end < text.size() && HasClassAt(text, end, kWordClass));
}

size_t SkipSpaceBackward(std::string_view text, size_t end, size_t lowest) {
  while (end > lowest) {
    const size_t previous = PreviousCodePoint(text, end);
    if (!HasClassAt(text, previous, kSpaceClass)) break;
    end = previous;
  }
  return std::max(end, lowest);
}

size_t SkipSpaceForward(std::string_view text, size_t begin) {
  while (begin < text.size() && HasClassAt(text, begin, kSpaceClass)) {
    begin += ReadUtf8(text, begin).length;
  }
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(absl::Span<const AddedToken> tokens)
    : token_at_(1, -1), begins_(256, false) {
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    int32_t node = 0;
    for (const char byte : token.content) {
      const auto [edge, inserted] =
          edges_.try_emplace(EdgeKey(node, byte), static_cast<int32_t>(token_at_.size()));
      if (inserted) token_at_.push_back(-1);
      node = edge->second;
    }
    token_at_[node] = static_cast<int32_t>(tokens_.size());
    begins_[static_cast<uint8_t>(token.content[0])] = true;
    tokens_.push_back(token);
  }
}

AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text, size_t begin,
                                                      const Options& options,
                                                      size_t first_span) const {
  // Where the next literal span begins; a special token must end before it.
  const size_t literal_begin = first_span < options.literal_spans.size()
                                   ? options.literal_spans[first_span].first
                                   : text.size();
  Match longest;
  int32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto edge = edges_.find(EdgeKey(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    const int32_t token = token_at_[node];
    if (token < 0) continue;
    if (tokens_[token].special && options.parse_special && i + 1 > literal_begin) continue;
    longest = {.token = token, .end = i + 1};
  }
  return longest;
}

std::vector<TextSection> AddedTokenMatcher::Split(std::string_view text,
                                                  const Options& options) const {
  std::vector<TextSection> sections;
  size_t section_begin = 0;
  size_t span = 0;  // the first literal span that ends after `i`
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    while (span < options.literal_spans.size() && options.literal_spans[span].second <= i) ++span;
    if (!begins_[static_cast<uint8_t>(text[i])]) {
      ++i;
      continue;
    }
    const Match match = LongestAt(text, i, options, span);
    if (match.token < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    size_t begin = i;
    size_t end = match.end;
    i = match.end;
    if (token.special && !options.parse_special) continue;
    if (token.single_word && IsInsideWord(text, begin, end)) continue;
    if (token.lstrip) begin = SkipSpaceBackward(text, begin, section_begin);
    if (token.rstrip) end = SkipSpaceForward(text, end);
    if (section_begin < begin) sections.push_back({.begin = section_begin, .end = begin});
    sections.push_back({.id = token.id, .begin = begin, .end = end});
    section_begin = end;
  }
  if (section_begin < text.size()) sections.push_back({.begin = section_begin, .end = text.size()});
  return sections;
}

}  // namespace tokenbutler
