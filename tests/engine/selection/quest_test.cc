#include "engine/selection/quest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

AttentionParams Params(int token_budget) {
  AttentionParams params = DefaultParams(AttentionPolicy::kQuest);
  params.token_budget = token_budget;
  return params;
}

// The published rule, page by page: pages of 16; a page's score is the sum over channels of the
// larger of query * max and query * min; the group shares the best of its heads' scores; the last
// page and the best of the others up to max(3, budget / 16).
std::vector<int> QuestTokens(const FakeSequence& sequence, int layer, int kv_head, int budget) {
  const int n = sequence.length(), head_dim = sequence.shape().head_dim;
  const int last_page = (n - 1) / 16;
  std::vector<double> scores;
  for (int page = 0; page < last_page; ++page) {
    std::vector<double> max(head_dim, -1e30), min(head_dim, 1e30);
    for (int t = 16 * page; t < 16 * page + 16; ++t) {
      const std::vector<float> key = sequence.Key(layer, kv_head, t);
      for (int c = 0; c < head_dim; ++c) {
        max[c] = std::max(max[c], double{key[c]});
        min[c] = std::min(min[c], double{key[c]});
      }
    }
    double best = -std::numeric_limits<double>::infinity();
    for (int g = 0; g < sequence.shape().group_size; ++g) {
      const float* query =
          sequence.Query(layer, n - 1) + (kv_head * sequence.shape().group_size + g) * head_dim;
      double score = 0;
      for (int c = 0; c < head_dim; ++c) score += std::max(query[c] * max[c], query[c] * min[c]);
      best = std::max(best, score);
    }
    scores.push_back(best);
  }
  const AttentionParams& params = sequence.params();
  for (int page = 0; page < last_page; ++page) {
    const bool has_sink = 16 * page < params.sink_tokens;
    const bool has_local = 16 * page + 15 >= n - params.local_window;
    if (has_sink || has_local) scores[page] = std::numeric_limits<double>::infinity();
  }
  std::vector<int> pages(last_page);
  std::iota(pages.begin(), pages.end(), 0);
  std::stable_sort(pages.begin(), pages.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  pages.resize(std::min<size_t>(pages.size(), std::max(3, budget / 16) - 1));
  pages.push_back(last_page);
  std::sort(pages.begin(), pages.end());
  std::vector<int> tokens;
  for (const int page : pages) {
    for (int t = 16 * page; t < std::min(16 * page + 16, n); ++t) tokens.push_back(t);
  }
  return tokens;
}

class QuestTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(GroupSizes, QuestTest, testing::Values(1, 3, 7));

TEST_P(QuestTest, ChoosesAsPublished) {
  for (const int budget : {48, 70, 128}) {
    for (const int chunk : {1, 7, 64, 1000}) {
      SCOPED_TRACE(testing::Message() << "budget " << budget << " chunk " << chunk);
      FakeSequence sequence({.num_layers = 4, .group_size = GetParam()}, Params(budget), 400);
      const auto selector = sequence.NewSelector();
      ASSERT_NE(selector, nullptr);
      sequence.Prefill(selector.get(), 199, chunk);
      for (int step = 0; step < 40; ++step) {
        const std::vector<TokenSelection> selections = sequence.Decode(selector.get());
        EXPECT_EQ(selections[0].num_kv_heads, 0) << "layers 0 and 1 are dense";
        EXPECT_EQ(selections[1].num_kv_heads, 0) << "layers 0 and 1 are dense";
        for (int layer = 2; layer < 4; ++layer) {
          ExpectWellFormed(selections[layer], 2, sequence.length(), budget);
          for (int h = 0; h < 2; ++h) {
            const auto tokens = selections[layer].tokens_of(h);
            ASSERT_EQ(std::vector<int>(tokens.begin(), tokens.end()),
                      QuestTokens(sequence, layer, h, budget))
                << "layer " << layer << " head " << h << " length " << sequence.length();
          }
        }
      }
    }
  }
}

TEST(QuestRuleTest, PagesOfSinkAndWindowAreOptional) {
  for (const auto& [sink, local] : {std::pair{1, 1}, {16, 1}, {17, 40}, {0, 33}, {40, 65}}) {
    SCOPED_TRACE(testing::Message() << sink << " sink tokens, window " << local);
    AttentionParams params = Params(150);
    params.sink_tokens = sink;
    params.local_window = local;
    FakeSequence sequence({.num_layers = 3}, params, 400);
    const auto selector = sequence.NewSelector();
    ASSERT_NE(selector, nullptr);
    sequence.Prefill(selector.get(), 170, 50);
    for (int step = 0; step < 40; ++step) {
      const TokenSelection selection = sequence.Decode(selector.get())[2];
      ExpectWellFormed(selection, 2, sequence.length(), 150);
      for (int h = 0; h < 2; ++h) {
        const auto tokens = selection.tokens_of(h);
        ASSERT_EQ(std::vector<int>(tokens.begin(), tokens.end()), QuestTokens(sequence, 2, h, 150));
      }
    }
  }
}

TEST(QuestRuleTest, BoundsFollowASecondPromptAndStepsThatNeededNoChoice) {
  FakeSequence sequence({.num_layers = 3}, Params(96), 400);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 30, 16);
  for (int step = 0; step < 70; ++step) sequence.Decode(selector.get());  // the budget ends at 96
  sequence.Prefill(selector.get(), 75, 10);
  for (int step = 0; step < 20; ++step) {
    const std::vector<TokenSelection> selections = sequence.Decode(selector.get());
    const auto tokens = selections[2].tokens_of(1);
    ASSERT_EQ(std::vector<int>(tokens.begin(), tokens.end()), QuestTokens(sequence, 2, 1, 96));
  }
}

TEST(QuestRuleTest, ForksGoOnIndependently) {
  FakeSequence sequence({.num_layers = 3}, Params(64), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 150, 64);
  sequence.Decode(selector.get());
  const auto fork = sequence.Fork(9);
  const auto clone = selector->Clone();
  for (int step = 0; step < 40; ++step) {
    for (FakeSequence* one : {&sequence, fork.get()}) {
      const auto selections = one->Decode(one == fork.get() ? clone.get() : selector.get());
      const auto tokens = selections[2].tokens_of(0);
      ASSERT_EQ(std::vector<int>(tokens.begin(), tokens.end()), QuestTokens(*one, 2, 0, 64));
    }
  }
}

TEST(QuestRuleTest, RefusesWhatItCannotDo) {
  const FakeSequence sequence({.block_size = 32}, Params(48), 64);
  SelectionResources resources = sequence.resources();
  EXPECT_TRUE(CheckPolicy(Params(48), resources).ok());
  EXPECT_EQ(CheckPolicy(Params(47), resources).code(), absl::StatusCode::kInvalidArgument);
  AttentionParams params = Params(160);
  params.sink_tokens = 17;
  params.local_window = 97;  // two pages of sink tokens, seven of the window
  params.token_budget = 143;
  EXPECT_EQ(CheckPolicy(params, resources).code(), absl::StatusCode::kInvalidArgument);
  params.token_budget = 144;
  EXPECT_TRUE(CheckPolicy(params, resources).ok());
  resources.layout.block_size = 40;
  EXPECT_EQ(CheckPolicy(Params(48), resources).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tokenbutler
