#include "tools/eval/tasks/answer_metrics.h"

#include "gtest/gtest.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {
namespace {

TEST(MatchAllTest, IsTheShareOfExpectedStringsWhateverTheirCase) {
  EXPECT_EQ(MatchAll("The numbers are 123 and 456.", {"123", "456"}), 1);
  EXPECT_EQ(MatchAll("The numbers are 123 and 45.", {"123", "456"}), 0.5);
  EXPECT_EQ(MatchAll("ABCDE, fghij", {"abcde", "FGHIJ", "KLMNO", "X"}), 0.5);
  EXPECT_EQ(MatchAll("", {"123"}), 0);
}

TEST(MatchAnyTest, OneExpectedStringIsEnough) {
  EXPECT_EQ(MatchAny("It was in paris, I think", {"London", "Paris"}), 1);
  EXPECT_EQ(MatchAny("It was in Rome", {"London", "Paris"}), 0);
}

TEST(MatchStartTest, HalfANameIsNoAnswer) {
  EXPECT_EQ(MatchStart(" Zhoradel. The", {"Zhoradel"}), 1);
  EXPECT_EQ(MatchStart("Zhoradel", {"Zhoradel"}), 1);
  EXPECT_EQ(MatchStart(" Zhora", {"Zhoradel"}), 0);
  EXPECT_EQ(MatchStart(" Zhoradelia", {"Zhoradel"}), 0);
  EXPECT_EQ(MatchStart(" the Zhoradel", {"Zhoradel"}), 0);
}

TEST(LastBoxedTest, BracesAreBalancedAndTheLastBoxCounts) {
  EXPECT_EQ(LastBoxed(R"(First \boxed{1}, then \boxed{\frac{3}{4}}.)"), R"(\frac{3}{4})");
  EXPECT_EQ(LastBoxed(R"(\fbox{7})"), "7");
  EXPECT_EQ(LastBoxed(R"(\fbox{7} and \boxed{8})"), "8");
  EXPECT_EQ(LastBoxed(R"(the answer is \boxed{12)"), std::nullopt);
  EXPECT_EQ(LastBoxed("the answer is 12"), std::nullopt);
}

TEST(ParseBoxedIntegerTest, ReadsIntegersAsPeopleWriteThem) {
  EXPECT_EQ(ParseBoxedInteger("204"), 204);
  EXPECT_EQ(ParseBoxedInteger(" 025 "), 25);
  EXPECT_EQ(ParseBoxedInteger("$73$"), 73);
  EXPECT_EQ(ParseBoxedInteger("1,024"), 1024);
  EXPECT_EQ(ParseBoxedInteger("1{,}024"), 1024);
  EXPECT_EQ(ParseBoxedInteger(R"(\text{809})"), 809);
  EXPECT_EQ(ParseBoxedInteger("-5"), -5);
  for (const char* other : {"", "x", "1.5", "12a", R"(\frac{3}{4})", "1234567890123456789"}) {
    EXPECT_EQ(ParseBoxedInteger(other), std::nullopt) << other;
  }
}

TEST(MatchBoxedIntegerTest, OnlyTheBoxCounts) {
  EXPECT_EQ(MatchBoxedInteger(R"(so m+n = \boxed{073}.)", {"73"}), 1);
  EXPECT_EQ(MatchBoxedInteger(R"(73 is wrong, hence \boxed{74})", {"73"}), 0);
  EXPECT_EQ(MatchBoxedInteger("the answer is 73", {"73"}), 0);
}

TEST(ScoreAnswerTest, UsesTheSamplesMetric) {
  TaskSample sample;
  sample.answers = {"one", "two"};
  EXPECT_EQ(ScoreAnswer(sample, "one"), 0.5);
  sample.metric = AnswerMetric::kAnyString;
  EXPECT_EQ(ScoreAnswer(sample, "one"), 1);
  sample.metric = AnswerMetric::kStartsWith;
  EXPECT_EQ(ScoreAnswer(sample, "then two"), 0);
  sample.metric = AnswerMetric::kBoxedInteger;
  sample.answers = {"12"};
  EXPECT_EQ(ScoreAnswer(sample, "\\boxed{12}"), 1);
}

}  // namespace
}  // namespace tokenbutler
