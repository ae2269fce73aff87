#include "engine/chat_template/jinja_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(JinjaTextTest, PiecesKeepTheirProvenance) {
  JinjaTextBuilder builder;
  builder.Append("ab");
  builder.Append("CDE", /*from_content=*/true);
  builder.Append("F", /*from_content=*/true);
  builder.Append("gh");
  const JinjaText text = builder.Build();
  EXPECT_EQ(text.view(), "abCDEFgh");
  EXPECT_THAT(text.content(), ElementsAre(Pair(2, 6)));
  EXPECT_THAT(text.Slice(3, 2).content(), ElementsAre(Pair(0, 2)));
  EXPECT_THAT(text.Slice(0, 3).content(), ElementsAre(Pair(2, 3)));
  EXPECT_THAT(text.Slice(5).content(), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(text.Slice(6).content(), IsEmpty());
  EXPECT_THAT(text.Slice(100).view(), IsEmpty());
}

TEST(JinjaTextTest, ManySpans) {
  JinjaTextBuilder builder;
  for (int i = 0; i < 100; ++i) {
    builder.Append("t");
    builder.Append("C", true);
  }
  const JinjaText text = builder.Build();
  EXPECT_EQ(text.content().size(), 100u);
  EXPECT_THAT(text.Slice(150, 3).content(), ElementsAre(Pair(1, 2)));
  EXPECT_THAT(text.Slice(151, 3).content(), ElementsAre(Pair(0, 1), Pair(2, 3)));
}

TEST(JinjaTextTest, EmptyTextHasNoSpan) { EXPECT_THAT(JinjaText("", true).content(), IsEmpty()); }

}  // namespace
}  // namespace tokenbutler
