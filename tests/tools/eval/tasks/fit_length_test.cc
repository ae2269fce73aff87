#include "tools/eval/tasks/fit_length.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"

namespace tokenbutler {
namespace {

// BOS, two bytes of context a unit, one of question.
TaskSample Units(int context_len, int num_units) {
  TaskSample sample;
  sample.task = "units";
  sample.context_len = context_len;
  sample.context = std::string(2 * num_units, 'x');
  sample.question.push_back('?');
  sample.max_tokens = 10;
  return sample;
}

TEST(FitLengthTest, FindsTheLongestSampleThatFits) {
  const ByteTokenizer tokenizer;
  const PromptFormat format(tokenizer, nullptr, ChatUse::kNever);
  for (int context_len = 14; context_len < 140; ++context_len) {
    const auto sample =
        FitLength(format, 1, [&](int num_units) { return Units(context_len, num_units); });
    ASSERT_TRUE(sample.ok()) << sample.status();
    const int tokens = static_cast<int>(sample->prompt().size()) + 1 + sample->max_tokens;
    EXPECT_LE(tokens, context_len);
    EXPECT_GT(tokens + 2, context_len);
  }
}

TEST(FitLengthTest, SaysWhatTheShortestNeeds) {
  const ByteTokenizer tokenizer;
  const PromptFormat format(tokenizer, nullptr, ChatUse::kNever);
  const auto sample = FitLength(format, 3, [](int num_units) { return Units(17, num_units); });
  EXPECT_EQ(sample.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sample.status().message()),
              ::testing::HasSubstr("context_len is 17, units needs at least 18"));
}

}  // namespace
}  // namespace tokenbutler
