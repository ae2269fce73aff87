#include "engine/selection/snapkv.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

AttentionParams Params(int token_budget, int window) {
  AttentionParams params = DefaultParams(AttentionPolicy::kSnapKv);
  params.token_budget = token_budget;
  params.local_window = window;
  return params;
}

// The published rule for a prompt of `prompt_len` tokens, and what its answer does to the budget:
// the softmax rows of the prompt's last `window` queries are summed, averaged over the group and
// pooled by a maximum over 7 tokens; the best tokens before the window are kept, as many as the
// budget leaves beside the window and all later tokens.
std::vector<int> SnapKvTokens(const FakeSequence& sequence, int layer, int kv_head, int prompt_len,
                              int window, int budget, int first_query = 0) {
  const int n = sequence.length(), group_size = sequence.shape().group_size;
  const int prefix = std::max(prompt_len - window, 0);
  std::vector<double> mean(prefix);
  for (int i = std::max(prefix, first_query); i < prompt_len; ++i) {
    for (int g = 0; g < group_size; ++g) {
      std::vector<double> weights;
      double sum = 0;
      for (int t = 0; t <= i; ++t) {
        weights.push_back(std::exp(sequence.Logit(layer, kv_head * group_size + g, i, t)));
        sum += weights.back();
      }
      for (int t = 0; t < prefix; ++t) mean[t] += weights[t] / sum / group_size;
    }
  }
  std::vector<double> pooled(prefix);
  for (int t = 0; t < prefix; ++t) {
    for (int s = std::max(t - 3, 0); s <= std::min(t + 3, prefix - 1); ++s) {
      pooled[t] = std::max(pooled[t], mean[s]);
    }
  }
  std::vector<int> order(prefix);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return pooled[a] > pooled[b]; });
  order.resize(std::clamp(budget - (n - prefix), 0, prefix));
  std::sort(order.begin(), order.end());
  for (int t = std::max(prefix, n - budget); t < n; ++t) order.push_back(t);
  return order;
}

void ExpectChoice(const FakeSequence& sequence, const std::vector<TokenSelection>& selections,
                  int prompt_len, int first_query = 0) {
  const AttentionParams& params = sequence.params();
  for (int layer = 0; layer < sequence.shape().num_layers; ++layer) {
    ExpectWellFormed(selections[layer], sequence.shape().num_kv_heads, sequence.length(),
                     params.token_budget);
    for (int h = 0; h < sequence.shape().num_kv_heads; ++h) {
      const auto tokens = selections[layer].tokens_of(h);
      ASSERT_EQ(std::vector<int>(tokens.begin(), tokens.end()),
                SnapKvTokens(sequence, layer, h, prompt_len, params.local_window,
                             params.token_budget, first_query))
          << "layer " << layer << " head " << h << " length " << sequence.length();
    }
  }
}

class SnapKvTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(GroupSizes, SnapKvTest, testing::Values(1, 3, 7));

// Until the answer has taken all of the budget, and beyond.
TEST_P(SnapKvTest, ChoosesAsPublishedWhateverTheChunks) {
  for (const int chunk : {1, 7, 64, 1000}) {
    SCOPED_TRACE(testing::Message() << "chunk " << chunk);
    FakeSequence sequence({.group_size = GetParam()}, Params(40, 16), 300);
    const auto selector = sequence.NewSelector();
    ASSERT_NE(selector, nullptr);
    sequence.Prefill(selector.get(), 130, chunk);
    for (int step = 0; step < 50; ++step) {
      const auto selections = sequence.Decode(selector.get());
      if (step % 5 == 0 || step > 20) ExpectChoice(sequence, selections, 130);
    }
  }
}

TEST(SnapKvRuleTest, LongerWindowsAndPromptsAroundTheWindow) {
  for (const int prompt_len : {1, 31, 32, 33, 36, 63, 64, 65, 100}) {
    SCOPED_TRACE(testing::Message() << "prompt " << prompt_len);
    FakeSequence sequence({}, Params(48, 32), 300);
    const auto selector = sequence.NewSelector();
    sequence.Prefill(selector.get(), prompt_len, 10);
    while (sequence.length() < 120) {
      const auto selections = sequence.Decode(selector.get());
      if (sequence.length() > 48) ExpectChoice(sequence, selections, prompt_len);
    }
  }
}

// All tokens are still there when another prompt follows, and the choice is made anew.
TEST(SnapKvRuleTest, ASecondPromptChoosesAnew) {
  FakeSequence sequence({}, Params(40, 16), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 80, 32);
  for (int step = 0; step < 5; ++step) sequence.Decode(selector.get());
  // Shorter than the window: the queries before it were decoded.
  sequence.Prefill(selector.get(), 9, 4);
  ExpectChoice(sequence, sequence.Decode(selector.get()), 94);
  for (int step = 0; step < 9; ++step) sequence.Decode(selector.get());
  ExpectChoice(sequence, sequence.Decode(selector.get()), 94);
}

// Steps that the budget held completely passed unseen: the window has the queries since then.
TEST(SnapKvRuleTest, AShortSecondPromptAfterUnseenStepsUsesTheQueriesItHas) {
  FakeSequence sequence({}, Params(40, 16), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 30, 32);
  for (int step = 0; step < 5; ++step) sequence.Decode(selector.get());
  sequence.Prefill(selector.get(), 10, 4);
  ExpectChoice(sequence, sequence.Decode(selector.get()), 45, /*first_query=*/35);
}

// Benchmarks fill the cache themselves and may have no queries to show.
TEST(SnapKvRuleTest, RowsWithoutQueriesCanBeAdopted) {
  FakeSequence sequence({}, Params(40, 16), 100);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(nullptr, 60);
  for (int layer = 0; layer < 2; ++layer) selector->OnPrefill(sequence.Context(layer, 60), {});
  for (int step = 0; step < 5; ++step) {
    for (const TokenSelection& selection : sequence.Decode(selector.get())) {
      ExpectWellFormed(selection, 2, sequence.length(), 40);
      EXPECT_EQ(selection.tokens_of(0).size(), 40u);
    }
  }
}

TEST(SnapKvRuleTest, ForksGoOnIndependently) {
  FakeSequence sequence({}, Params(40, 16), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 90, 32);
  sequence.Decode(selector.get());
  const auto fork = sequence.Fork(2);
  const auto clone = selector->Clone();
  for (int step = 0; step < 6; ++step) {
    ExpectChoice(sequence, sequence.Decode(selector.get()), 90);
    ExpectChoice(*fork, fork->Decode(clone.get()), 90);
  }
  fork->Prefill(clone.get(), 30);
  ExpectChoice(*fork, fork->Decode(clone.get()), 97 + 30);
  ExpectChoice(sequence, sequence.Decode(selector.get()), 90);
}

}  // namespace
}  // namespace tokenbutler
