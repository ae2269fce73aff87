#include "engine/selection/h2o.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

AttentionParams Params(int token_budget) {
  AttentionParams params = DefaultParams(AttentionPolicy::kH2o);
  params.token_budget = token_budget;
  return params;
}

// One KV head's cache under the published rule, in which the cache is cut after each step to
// heavy + recent tokens: with the next token it is then the budget.
class H2oCache {
 public:
  H2oCache(int budget, int layer, int kv_head)
      : budget_(budget), layer_(layer), kv_head_(kv_head) {}

  // The queries at [begin, end) attend to everything before them; what is cached collects it.
  void Prefill(const FakeSequence& sequence, int begin, int end) {
    for (int t = begin; t < end; ++t) score_[t];
    for (int i = begin; i < end; ++i) {
      std::vector<int> all(i + 1);
      for (int t = 0; t <= i; ++t) all[t] = t;
      Attend(sequence, i, all);
    }
  }
  // Returns what the query at `position` attends to.
  std::vector<int> Decode(const FakeSequence& sequence, int position) {
    Cut(position);
    score_[position];
    std::vector<int> cached;
    for (const auto& [t, score] : score_) cached.push_back(t);
    Attend(sequence, position, cached);
    Cut(position + 1);
    return cached;
  }

 private:
  void Attend(const FakeSequence& sequence, int position, const std::vector<int>& tokens) {
    const int group_size = sequence.shape().group_size;
    for (int g = 0; g < group_size; ++g) {
      std::vector<double> weights;
      double sum = 0;
      for (const int t : tokens) {
        weights.push_back(std::exp(sequence.Logit(layer_, kv_head_ * group_size + g, position, t)));
        sum += weights.back();
      }
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto at = score_.find(tokens[i]);
        if (at != score_.end()) at->second += weights[i] / sum;
      }
    }
  }

  // To budget - 1 tokens of the `num_tokens` so far, budget / 2 - 1 of them the last.
  void Cut(int num_tokens) {
    if (static_cast<int>(score_.size()) <= budget_ - 1) return;
    const int recent = budget_ / 2 - 1;
    std::vector<std::pair<double, int>> older;
    for (const auto& [t, score] : score_) {
      if (t < num_tokens - recent) older.emplace_back(-score, t);
    }
    std::sort(older.begin(), older.end());
    for (size_t i = budget_ - 1 - recent; i < older.size(); ++i) score_.erase(older[i].second);
  }

  int budget_, layer_, kv_head_;
  std::map<int, double> score_;  // of the cached tokens
};

// The caches of all layers and KV heads.
class H2oCaches {
 public:
  explicit H2oCaches(const FakeSequence& sequence) {
    for (int layer = 0; layer < sequence.shape().num_layers; ++layer) {
      for (int h = 0; h < sequence.shape().num_kv_heads; ++h) {
        caches_.emplace_back(sequence.params().token_budget, layer, h);
      }
    }
  }
  void Prefill(const FakeSequence& sequence, int begin) {
    for (H2oCache& cache : caches_) cache.Prefill(sequence, begin, sequence.length());
  }
  void ExpectStep(const FakeSequence& sequence, const std::vector<TokenSelection>& selections) {
    const std::vector<std::vector<int>> tokens = TokensOf(selections);
    ASSERT_EQ(tokens.size(), caches_.size());
    for (size_t i = 0; i < caches_.size(); ++i) {
      EXPECT_LE(static_cast<int>(tokens[i].size()), sequence.params().token_budget);
      ASSERT_EQ(tokens[i], caches_[i].Decode(sequence, sequence.length() - 1))
          << "list " << i << " length " << sequence.length();
    }
  }

 private:
  std::vector<H2oCache> caches_;
};

class H2oTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(GroupSizes, H2oTest, testing::Values(1, 3, 7));

TEST_P(H2oTest, EvictsAsPublishedWhateverTheChunks) {
  for (const int chunk : {1, 7, 64, 1000}) {
    SCOPED_TRACE(testing::Message() << "chunk " << chunk);
    FakeSequence sequence({.group_size = GetParam()}, Params(31), 300);
    const auto selector = sequence.NewSelector();
    ASSERT_NE(selector, nullptr);
    H2oCaches expected(sequence);
    sequence.Prefill(selector.get(), 90, chunk);
    expected.Prefill(sequence, 0);
    for (int step = 0; step < 40; ++step) {
      expected.ExpectStep(sequence, sequence.Decode(selector.get()));
    }
  }
}

TEST(H2oRuleTest, ShortPromptsAreKeptUntilTheBudgetIsFull) {
  FakeSequence sequence({}, Params(30), 300);
  const auto selector = sequence.NewSelector();
  H2oCaches expected(sequence);
  sequence.Prefill(selector.get(), 11, 4);
  expected.Prefill(sequence, 0);
  for (int step = 0; step < 60; ++step) {
    const auto selections = sequence.Decode(selector.get());
    expected.ExpectStep(sequence, selections);
    if (sequence.length() <= 30) {
      EXPECT_EQ(static_cast<int>(selections[1].tokens_of(1).size()), sequence.length());
    }
  }
}

TEST(H2oRuleTest, WhatIsEvictedStaysGoneAlsoAfterASecondPrompt) {
  FakeSequence sequence({}, Params(24), 300);
  const auto selector = sequence.NewSelector();
  H2oCaches expected(sequence);
  sequence.Prefill(selector.get(), 60, 16);
  expected.Prefill(sequence, 0);
  std::set<int> ever_kept;
  for (int step = 0; step < 10; ++step) {
    const auto selections = sequence.Decode(selector.get());
    expected.ExpectStep(sequence, selections);
    if (step == 9)
      ever_kept = {selections[0].tokens_of(0).begin(), selections[0].tokens_of(0).end()};
  }
  const int begin = sequence.length();
  sequence.Prefill(selector.get(), 40, 7);
  expected.Prefill(sequence, begin);
  for (int step = 0; step < 10; ++step) {
    const auto selections = sequence.Decode(selector.get());
    expected.ExpectStep(sequence, selections);
    for (const int t : selections[0].tokens_of(0)) {
      EXPECT_TRUE(t >= begin || ever_kept.count(t) == 1) << t;
    }
  }
}

// Benchmarks fill the cache themselves and may have no queries to show.
TEST(H2oRuleTest, RowsWithoutQueriesCanBeAdopted) {
  FakeSequence sequence({}, Params(40), 100);
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

TEST(H2oRuleTest, ForksGoOnIndependently) {
  FakeSequence sequence({}, Params(24), 300);
  const auto selector = sequence.NewSelector();
  H2oCaches expected(sequence);
  sequence.Prefill(selector.get(), 60, 16);
  expected.Prefill(sequence, 0);
  expected.ExpectStep(sequence, sequence.Decode(selector.get()));
  const auto fork = sequence.Fork(2);
  const auto clone = selector->Clone();
  H2oCaches expected_of_fork = expected;
  for (int step = 0; step < 30; ++step) {
    expected.ExpectStep(sequence, sequence.Decode(selector.get()));
    expected_of_fork.ExpectStep(*fork, fork->Decode(clone.get()));
  }
}

TEST(H2oRuleTest, NeedsTheAttentionOfAllChosenTokens) {
  const FakeSequence sequence({}, Params(24), 64);
  AttentionParams params = Params(24);
  EXPECT_TRUE(CheckPolicy(params, sequence.resources()).ok());
  params.misses = MissRule::kDeferred;
  EXPECT_EQ(CheckPolicy(params, sequence.resources()).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tokenbutler
