#include "engine/tokenizer/added_tokens.h"

#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;
using Spans = std::vector<std::pair<size_t, size_t>>;

// Sections as "text" or "#id:text".
std::vector<std::string> Split(const std::vector<AddedToken>& tokens, std::string_view text,
                               bool parse_special = true, const Spans& spans = {}) {
  const AddedTokenMatcher matcher(tokens);
  std::vector<std::string> sections;
  for (const TextSection& s :
       matcher.Split(text, {.parse_special = parse_special, .literal_spans = spans})) {
    const std::string part(text.substr(s.begin, s.end - s.begin));
    sections.push_back(s.id < 0 ? part : fmt::format("#{}:{}", s.id, part));
  }
  return sections;
}

AddedToken Special(int32_t id, std::string content) {
  return {.id = id, .content = std::move(content), .special = true};
}

TEST(AddedTokensTest, LeftmostAndLongest) {
  const std::vector<AddedToken> tokens = {Special(1, "<a>"), Special(2, "<a><b>"),
                                          Special(3, "a><")};
  EXPECT_THAT(Split(tokens, "x<a><b><a>y"), ElementsAre("x", "#2:<a><b>", "#1:<a>", "y"));
  EXPECT_THAT(Split(tokens, "<a><"), ElementsAre("#1:<a>", "<"));
  EXPECT_THAT(Split(tokens, ""), ElementsAre());
}

TEST(AddedTokensTest, SpecialStaysTextUnlessParsed) {
  std::vector<AddedToken> tokens = {Special(1, "<a>"), {.id = 2, .content = "<tool>"}};
  EXPECT_THAT(Split(tokens, "<a><tool>", false), ElementsAre("<a>", "#2:<tool>"));
  EXPECT_THAT(Split(tokens, "<a><tool>", true), ElementsAre("#1:<a>", "#2:<tool>"));
}

TEST(AddedTokensTest, SwallowsSpace) {
  std::vector<AddedToken> tokens = {Special(1, "<l>"), Special(2, "<r>")};
  tokens[0].lstrip = true;
  tokens[1].rstrip = true;
  EXPECT_THAT(Split(tokens, "a \u3000<l> b <r> \n c"),
              ElementsAre("a", "#1: \u3000<l>", " b ", "#2:<r> \n ", "c"));
  EXPECT_THAT(Split(tokens, "<r>  <l>"), ElementsAre("#2:<r>  ", "#1:<l>"));
}

TEST(AddedTokensTest, SingleWord) {
  std::vector<AddedToken> tokens = {Special(1, "w")};
  tokens[0].single_word = true;
  EXPECT_THAT(Split(tokens, "w aw w\u0301 .w."), ElementsAre("#1:w", " aw w\u0301 .", "#1:w", "."));
}

TEST(AddedTokensTest, LiteralSpansHideSpecialTokens) {
  const std::vector<AddedToken> tokens = {Special(1, "<a>"), {.id = 2, .content = "<tool>"}};
  const std::string text = "<a><a><a><tool>";
  EXPECT_THAT(Split(tokens, text, true, {{3, 6}}),
              ElementsAre("#1:<a>", "<a>", "#1:<a>", "#2:<tool>"));
  EXPECT_THAT(Split(tokens, text, true, {{5, 15}}), ElementsAre("#1:<a>", "<a><a>", "#2:<tool>"));
}

TEST(AddedTokensTest, HalfInsideALiteralSpanIsText) {
  const std::vector<AddedToken> tokens = {Special(1, "<a>")};
  EXPECT_THAT(Split(tokens, "<a>", true, {{0, 1}}), ElementsAre("<a>"));
  EXPECT_THAT(Split(tokens, "<a>", true, {{2, 3}}), ElementsAre("<a>"));
}

// A message that ends in the beginning of a control token must not make the template's own one
// unrecognisable, nor borrow from it.
TEST(AddedTokensTest, TemplateTokenAfterLiteralBeginningOfOne) {
  const std::vector<AddedToken> tokens = {Special(1, "<|end|>"), Special(2, "<|end|><|x|>")};
  EXPECT_THAT(Split(tokens, "<|en<|end|>", true, {{0, 4}}), ElementsAre("<|en", "#1:<|end|>"));
  EXPECT_THAT(Split(tokens, "<|end|><|x|>", true, {{7, 12}}), ElementsAre("#1:<|end|>", "<|x|>"));
}

}  // namespace
}  // namespace tokenbutler
