#include "tools/scoring/prompt_forks.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"
#include "tools/scoring/divergence.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class PromptForksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteTinyModel(folder_.path());
    auto model = MeasuredModel::Create({.model = folder_.path().string(),
                                        .dtype = "float32",
                                        .context_len = kTinyModelLen,
                                        .num_blocks = [](const SelectionResources&) { return 60; },
                                        .needs_tokenizer = true,
                                        .runner = {.recall_probe_rate = 2}},
                                       pool_);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto forks = PromptForks::Create(*model_, {.context_len = kTinyModelLen, .max_num_seqs = 4});
    ASSERT_TRUE(forks.ok()) << forks.status();
    forks_ = *std::move(forks);
    ASSERT_TRUE(forks_->Hold(Tokens(0, 300), {}, nullptr, nullptr).ok());
  }

  static std::vector<int32_t> Tokens(int begin, int count) {
    std::vector<int32_t> tokens(count);
    for (int i = 0; i < count; ++i) tokens[i] = 5 + (begin + i) * 37 % 600;
    return tokens;
  }

  using Logits = std::map<int, std::vector<float>>;  // by the token that they come after
  Logits LogitsOf(const Continuation& continuation) {
    Logits all;
    const auto results =
        forks_->Run({&continuation, 1}, [&](int, int i, absl::Span<const float> logits) {
          all[i] = {logits.begin(), logits.end()};
        });
    EXPECT_TRUE(results.ok()) << results.status();
    return all;
  }

  static constexpr AttentionParams kSparse{
      .policy = AttentionPolicy::kExact, .token_budget = 200, .sink_tokens = 4, .local_window = 16};
  TemporaryFolder folder_;
  ComputePool pool_{2};
  std::unique_ptr<MeasuredModel> model_;
  std::unique_ptr<PromptForks> forks_;
};

TEST_F(PromptForksTest, ADecodedQuestionIsFedLikeTheTokensBehindIt) {
  const Logits whole = LogitsOf({.attention = kSparse, .scored = Tokens(300, 9)});
  ASSERT_THAT(whole, SizeIs(9));
  EXPECT_EQ(whole.begin()->first, 0);
  const Logits behind =
      LogitsOf({.attention = kSparse, .question = Tokens(300, 6), .scored = Tokens(306, 3)});
  ASSERT_THAT(behind, SizeIs(4));
  for (int i = -1; i < 3; ++i) EXPECT_EQ(behind.at(i), whole.at(i + 6)) << i;
  const Logits alone = LogitsOf({.attention = kSparse, .question = Tokens(300, 6)});
  ASSERT_THAT(alone, SizeIs(1));
  EXPECT_EQ(alone.at(-1), whole.at(5));
}

TEST_F(PromptForksTest, APrefilledQuestionSeesAllTokens) {
  const Continuation dense = {.attention = {}, .question = Tokens(300, 6), .scored = {7}};
  Continuation prefilled = dense;
  prefilled.question_is_decoded = false;
  prefilled.attention = kSparse;
  const Logits of_dense = LogitsOf(dense), of_prefilled = LogitsOf(prefilled);
  ASSERT_THAT(of_prefilled, SizeIs(2));
  EXPECT_EQ(TopToken(of_prefilled.at(-1)), TopToken(of_dense.at(-1)));
  for (size_t i = 0; i < of_dense.at(-1).size(); ++i) {
    ASSERT_NEAR(of_prefilled.at(-1)[i], of_dense.at(-1)[i], 1e-4);
  }
  EXPECT_NE(of_prefilled.at(0), of_dense.at(0)) << "what follows attends to its budget";
}

TEST_F(PromptForksTest, GenerationGoesOnFromTheQuestion) {
  for (const AttentionParams& attention : {AttentionParams(), kSparse}) {
    std::vector<int32_t> expected;
    for (int i = 0; i < 5; ++i) {
      std::vector<int32_t> scored = expected;
      const Logits logits = LogitsOf(
          {.attention = attention, .question = Tokens(300, 6), .scored = std::move(scored)});
      expected.push_back(TopToken(logits.at(i - 1)));
    }
    Continuation generating = {.attention = attention, .question = Tokens(300, 6)};
    generating.max_tokens = 5;
    generating.stop.ignore_eos = true;
    const auto results = forks_->Run({&generating, 1});
    ASSERT_TRUE(results.ok()) << results.status();
    ASSERT_THAT((*results)[0].completions, SizeIs(1));
    EXPECT_EQ((*results)[0].completions[0].token_ids, expected);
    EXPECT_EQ((*results)[0].completions[0].reason, FinishReason::kLength);
    EXPECT_EQ((*results)[0].completions[0].text,
              model_->tokenizer().Decode(expected, /*skip_special_tokens=*/true));
  }
}

TEST_F(PromptForksTest, MoreThanRunTogetherWaitForTheirTurn) {
  std::vector<Continuation> all(11, {.attention = kSparse, .scored = Tokens(300, 4)});
  all[3].attention = {};
  all[7].scored = Tokens(200, 2);
  std::vector<int> counts(all.size());
  const auto results = forks_->Run(all, [&](int c, int, absl::Span<const float>) { ++counts[c]; });
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT(counts, ElementsAre(4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 4));
  EXPECT_EQ((*results)[3].attention.attended_lists, 0) << "dense";
  EXPECT_GT((*results)[4].attention.attended_lists, (*results)[7].attention.attended_lists);
}

TEST_F(PromptForksTest, ProbesAreThoseOfTheContinuation) {
  Continuation probing = {.attention = kSparse, .question = Tokens(300, 6), .scored = {7, 8}};
  probing.probe = {.per_head = true, .watched = {5, 250}, .from_position = 305};
  const auto results = forks_->Run({&probing, 1});
  ASSERT_TRUE(results.ok()) << results.status();
  const AttentionProbes& probes = (*results)[0].probes;
  ASSERT_THAT(probes.layers, SizeIs(2));
  for (const LayerProbes& layer : probes.layers) {
    EXPECT_EQ(layer.count, 3) << "the question's last token and the two behind it";
  }
}

TEST_F(PromptForksTest, TheFirstErrorComesBack) {
  const std::vector<Continuation> all = {{.attention = kSparse, .scored = {7}},
                                         {.attention = kSparse, .scored = {100000}}};
  EXPECT_EQ(forks_->Run(all).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(forks_->Run({all.data(), 1}).ok());
}

}  // namespace
}  // namespace tokenbutler
