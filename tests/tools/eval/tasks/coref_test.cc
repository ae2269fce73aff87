#include "tools/eval/tasks/coref.h"

#include <set>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"

namespace tokenbutler {
namespace {

class CorefTest : public ::testing::Test {
 protected:
  absl::StatusOr<TaskSample> Make(int context_len, int index, uint64_t seed = 1) const {
    TaskSample sample;
    sample.task = "coref";
    sample.context_len = context_len;
    sample.index = index;
    sample.seed = seed;
    return MakeCorefSample(sample, format_);
  }

  ByteTokenizer tokenizer_;
  const PromptFormat format_{tokenizer_, nullptr, ChatUse::kAsBenchmark};
};

TEST_F(CorefTest, TheNameStandsOnceWhereTheEvidenceSays) {
  std::set<std::string> names, questions;
  for (int index = 0; index < 40; ++index) {
    const auto sample = Make(1500, index);
    ASSERT_TRUE(sample.ok()) << sample.status();
    const std::string& name = sample->answers[0];
    names.insert(name);
    questions.insert(sample->question);
    ASSERT_EQ(sample->evidence.size(), 1);
    const auto [begin, end] = sample->evidence[0];
    EXPECT_EQ(sample->context.substr(begin, end - begin), name);
    EXPECT_EQ(sample->context.find(name), begin);
    EXPECT_EQ(sample->prompt().find(name, end), std::string::npos);
    // A letter more and it is another name; the question goes on as the introduction did.
    EXPECT_EQ(sample->context[begin - 1], ' ');
    EXPECT_EQ(sample->forced_answer, " " + name);
    EXPECT_EQ(sample->question.front(), ' ');
    EXPECT_NE(sample->question.back(), ' ');
    // Neither at the very start nor near the end.
    EXPECT_GT(begin, 40);
    EXPECT_LT(static_cast<double>(end), 0.65 * static_cast<double>(sample->context.size()));
    EXPECT_EQ(ScoreAnswer(*sample, " " + name + ", and"), 1);
    EXPECT_EQ(ScoreAnswer(*sample, " " + name.substr(0, name.size() - 1)), 0);
  }
  EXPECT_EQ(names.size(), 40);
  EXPECT_GT(questions.size(), 30);
}

TEST_F(CorefTest, IsAsLongAsAskedFor) {
  for (const int context_len : {700, 4096, 16384}) {
    const auto sample = Make(context_len, 0);
    ASSERT_TRUE(sample.ok()) << sample.status();
    const int tokens = *format_.CountTokens(*sample) + sample->max_tokens;
    EXPECT_LE(tokens, context_len);
    EXPECT_GT(tokens, context_len - 300);  // a long sentence, in bytes
  }
  EXPECT_EQ(Make(100, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CorefTest, TheSameSeedMakesTheSameSample) {
  EXPECT_EQ(Make(1500, 3)->prompt(), Make(1500, 3)->prompt());
  EXPECT_NE(Make(1500, 3)->prompt(), Make(1500, 3, 2)->prompt());
  EXPECT_NE(Make(1500, 3)->prompt(), Make(1500, 4)->prompt());
  // The story does not depend on the length.
  EXPECT_EQ(Make(1500, 3)->answers, Make(4096, 3)->answers);
  EXPECT_EQ(Make(1500, 3)->question, Make(4096, 3)->question);
}

}  // namespace
}  // namespace tokenbutler
