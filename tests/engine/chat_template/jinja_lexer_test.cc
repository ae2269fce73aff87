#include "engine/chat_template/jinja_lexer.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

// The template data of a source, tags shown as "@".
std::string TextOf(std::string_view source) {
  const auto tokens = LexJinja(source);
  if (!tokens.ok()) return std::string(tokens.status().message());
  std::string out;
  for (const JinjaToken& token : *tokens) {
    if (token.kind == JinjaToken::Kind::kText) out += token.text;
    if (token.kind == JinjaToken::Kind::kTagBegin || token.kind == JinjaToken::Kind::kPrintBegin) {
      out += "@";
    }
  }
  return out;
}

TEST(JinjaLexerTest, WhiteSpaceControl) {
  EXPECT_EQ(TextOf("a\n  {% x %}\nb"), "a\n@b");        // lstrip_blocks and trim_blocks
  EXPECT_EQ(TextOf("a\n  {%+ x +%}\nb"), "a\n  @\nb");  // both off
  EXPECT_EQ(TextOf("a\n  {%- x -%}\n \nb"), "a@b");     // everything
  EXPECT_EQ(TextOf("a\n  {{ x }}\nb"), "a\n  @\nb");    // prints keep both
  EXPECT_EQ(TextOf("a {% x %} b"), "a @ b");            // not at the start of a line
  EXPECT_EQ(TextOf("{% x %}\n  {% x %}"), "@@");        // the trimmed newline starts a line
  EXPECT_EQ(TextOf("{{ x }}  {% x %}"), "@  @");
  EXPECT_EQ(TextOf("  {# c #}\nb"), "b");
  EXPECT_EQ(TextOf("a\u00a0{%- x %}"), "a@");
  EXPECT_EQ(TextOf("a\r\nb\rc\n"), "a\nb\nc");  // newlines are one kind, the last goes
}

TEST(JinjaLexerTest, Raw) {
  EXPECT_EQ(TextOf("{% raw %} {{ x }} {% endraw %}\n."), " {{ x }} .");
  EXPECT_EQ(TextOf("{%- raw -%}  {% x  {%- endraw -%}  ."), "{% x.");
}

TEST(JinjaLexerTest, ErrorsNameTheLine) {
  EXPECT_THAT(TextOf("\n\n{{ 'abc }}"), HasSubstr("line 3: unexpected end of a string"));
  EXPECT_THAT(TextOf("\n{# abc"), HasSubstr("missing end of comment tag"));
  EXPECT_THAT(TextOf("{% raw %}"), HasSubstr("missing end of raw tag"));
  EXPECT_THAT(TextOf("{{ a"), HasSubstr("unexpected end of template"));
  EXPECT_THAT(TextOf("{{ a ? }}"), HasSubstr("unexpected character '?'"));
  EXPECT_THAT(TextOf("{{ (a] }}"), HasSubstr("unexpected ']'"));
  EXPECT_THAT(TextOf("{{ '\\xg0' }}"), HasSubstr("incomplete"));
}

}  // namespace
}  // namespace tokenbutler
