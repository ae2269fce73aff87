#include "engine/selection/projected_scanner.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "engine/selection/policies.h"
#include "engine/selection/principal_directions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

AttentionParams PcaParams(int token_budget, int interval = 1, int candidates = 0) {
  AttentionParams params;
  params.policy = AttentionPolicy::kPca;
  params.token_budget = token_budget;
  params.sink_tokens = 4;
  params.local_window = 16;
  params.prediction_interval = interval;
  params.candidates = candidates;
  return params;
}

TEST(PrincipalDirectionsTest, FindsWhatWasPlanted) {
  // Keys are sums of three orthogonal directions of falling size, the largest with a mean.
  constexpr int kDim = 8, kRows = 500;
  const float planted[3][kDim] = {{0.5f, 0.5f, 0.5f, 0.5f, 0, 0, 0, 0},
                                  {0.5f, -0.5f, 0.5f, -0.5f, 0, 0, 0, 0},
                                  {0, 0, 0, 0, 0.6f, 0.8f, 0, 0}};
  const std::vector<float> sizes = RandomValues(3 * kRows, 1, 1.0f);
  std::vector<float> rows(kRows * kDim, 0.0f);
  for (int t = 0; t < kRows; ++t) {
    const float weights[3] = {5 + sizes[3 * t], 3 * sizes[3 * t + 1], sizes[3 * t + 2]};
    for (int d = 0; d < 3; ++d) {
      for (int i = 0; i < kDim; ++i) rows[t * kDim + i] += weights[d] * planted[d][i];
    }
  }
  // Each block is 128 keys and as many values, which nobody reads.
  std::vector<std::byte*> blocks;
  for (int b = 0; b < 4; ++b) {
    blocks.push_back(reinterpret_cast<std::byte*>(rows.data() + b * 128 * kDim));
  }
  std::vector<float> found(kDim * 3);
  const KvLayout layout = {.num_layers = 1,
                           .num_kv_heads = 1,
                           .head_dim = kDim,
                           .block_size = 128,
                           .dtype = DType::kF32};
  PrincipalDirections({.layout = &layout, .blocks = blocks, .num_rows = kRows}, 3, found.data());
  for (int d = 0; d < 3; ++d) {
    float cosine = 0, length = 0;
    for (int i = 0; i < kDim; ++i) {
      cosine += found[i * 3 + d] * planted[d][i];
      length += found[i * 3 + d] * found[i * 3 + d];
    }
    EXPECT_NEAR(std::abs(cosine), 1, 0.02) << d;
    EXPECT_NEAR(length, 1, 1e-5) << d;
  }
}

TEST(PrincipalDirectionsTest, TakesAxesWhenThereIsNothingToFind) {
  std::vector<float> rows(4, NAN), found(4 * 2);
  std::byte* const block = reinterpret_cast<std::byte*>(rows.data());
  for (const int num_rows : {0, 1}) {
    const KvLayout layout = {
        .num_layers = 1, .num_kv_heads = 1, .head_dim = 4, .block_size = 1, .dtype = DType::kF32};
    PrincipalDirections({.layout = &layout, .blocks = {&block, 1}, .num_rows = num_rows}, 2,
                        found.data());
    EXPECT_EQ(found, (std::vector<float>{1, 0, 0, 1, 0, 0, 0, 0}));
  }
}

// With as many directions as channels, projecting is a rotation: the choice is the oracle's, up to
// rounding to eight bits.
TEST(PcaTest, AllDirectionsChooseLikeTheOracle) {
  AttentionParams oracle = PcaParams(100);
  oracle.policy = AttentionPolicy::kExact;
  for (const int candidates : {0, 160}) {
    FakeSequence pca(SelectionShape{}, PcaParams(100, 1, candidates), 500);
    FakeSequence exact(SelectionShape{}, oracle, 500);
    const auto pca_selector = pca.NewSelector(), exact_selector = exact.NewSelector();
    pca.Prefill(pca_selector.get(), 400);
    exact.Prefill(exact_selector.get(), 400);
    int same = 0, all = 0;
    for (int step = 0; step < 40; ++step) {
      const auto mine = TokensOf(pca.Decode(pca_selector.get()));
      const auto best = TokensOf(exact.Decode(exact_selector.get()));
      ASSERT_EQ(mine.size(), best.size());
      for (size_t i = 0; i < mine.size(); ++i) {
        const std::set<int> chosen(mine[i].begin(), mine[i].end());
        for (const int t : best[i]) same += static_cast<int>(chosen.count(t));
        all += static_cast<int>(best[i].size());
      }
    }
    EXPECT_GT(same, 0.94 * all) << "candidates " << candidates;
  }
}

// Sixteen of thirty-two directions still know more than chance.
TEST(PcaTest, FewerDirectionsChooseWorse) {
  AttentionParams params = PcaParams(100);
  params.projected_dim = 16;
  AttentionParams oracle = params;
  oracle.policy = AttentionPolicy::kExact;
  FakeSequence pca(SelectionShape{}, params, 500), exact(SelectionShape{}, oracle, 500);
  const auto pca_selector = pca.NewSelector(), exact_selector = exact.NewSelector();
  pca.Prefill(pca_selector.get(), 400);
  exact.Prefill(exact_selector.get(), 400);
  int same = 0, all = 0;
  for (int step = 0; step < 20; ++step) {
    const auto mine = TokensOf(pca.Decode(pca_selector.get()));
    const auto best = TokensOf(exact.Decode(exact_selector.get()));
    for (size_t i = 0; i < mine.size(); ++i) {
      const std::set<int> chosen(mine[i].begin(), mine[i].end());
      for (const int t : best[i]) same += static_cast<int>(chosen.count(t));
      all += static_cast<int>(best[i].size());
    }
  }
  EXPECT_GT(same, 0.45 * all);
  EXPECT_LT(same, 0.95 * all);
}

class PcaIntervalTest : public testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Intervals, PcaIntervalTest,
                         testing::Values(std::pair(1, 0), std::pair(4, 150), std::pair(16, 0),
                                         std::pair(16, 150)));

TEST_P(PcaIntervalTest, KeepsTheBudgetAndTheNewestTokens) {
  const AttentionParams params = PcaParams(100, GetParam().first, GetParam().second);
  FakeSequence sequence(SelectionShape{}, params, 400);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 150, 7);
  for (int step = 0; step < 100; ++step) {
    for (const TokenSelection& selection : sequence.Decode(selector.get())) {
      ExpectWellFormed(selection, 2, sequence.length(), 100);
      for (int h = 0; h < 2; ++h) {
        const auto tokens = selection.tokens_of(h);
        for (int i = 1; i <= params.local_window; ++i) {
          EXPECT_EQ(tokens[tokens.size() - i], sequence.length() - i);
        }
      }
    }
  }
}

// Directions come from the first keys, however they arrived.
TEST_P(PcaIntervalTest, ChunksChangeNothing) {
  for (const int length : {300, kCalibrationTokens + 300}) {
    std::vector<std::vector<std::vector<int>>> runs;
    for (const int chunk : {1 << 20, 37}) {
      FakeSequence sequence(SelectionShape{.num_layers = 1, .head_dim = 16},
                            PcaParams(100, GetParam().first, GetParam().second), length + 30);
      const auto selector = sequence.NewSelector();
      sequence.Prefill(selector.get(), length, chunk);
      std::vector<std::vector<int>> lists;
      for (int step = 0; step < 20; ++step) {
        for (auto& list : TokensOf(sequence.Decode(selector.get()))) lists.push_back(list);
      }
      runs.push_back(std::move(lists));
    }
    EXPECT_EQ(runs[0], runs[1]) << length;
  }
}

TEST_P(PcaIntervalTest, AForkGoesItsOwnWay) {
  const AttentionParams params = PcaParams(100, GetParam().first, GetParam().second);
  FakeSequence sequence(SelectionShape{}, params, 400);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 200);
  for (int step = 0; step < 5; ++step) sequence.Decode(selector.get());
  const auto same = sequence.Fork(1), other = sequence.Fork(2);
  const auto same_selector = selector->Clone(), other_selector = selector->Clone();
  bool differs = false;
  for (int step = 0; step < 60; ++step) {
    const auto lists = TokensOf(sequence.Decode(selector.get()));
    EXPECT_EQ(TokensOf(same->Decode(same_selector.get())), lists);
    differs |= TokensOf(other->Decode(other_selector.get())) != lists;
  }
  EXPECT_TRUE(differs);
}

// The scores of a group are pooled as the predictor says: one loud head must not hide the others
// where they are normalised.
TEST(ProjectedScannerTest, PoolsAsItsOptionsSay) {
  constexpr int kTokens = 64;
  const SelectionShape shape{.num_layers = 1, .num_kv_heads = 1, .group_size = 2, .head_dim = 16};
  AttentionParams params = PcaParams(60);
  FakeSequence sequence(shape, params, kTokens + 32);
  sequence.Prefill(nullptr, kTokens);
  const LayerContext context = sequence.Context(0, kTokens);
  std::vector<float> identity(16 * 16, 0.0f);
  for (int i = 0; i < 16; ++i) identity[i * 16 + i] = 1;
  std::vector<float> query(2 * 16);
  const float* random = sequence.Query(0, kTokens - 1);
  for (int i = 0; i < 16; ++i) query[i] = 20 * random[i];
  for (int i = 16; i < 32; ++i) query[i] = random[i];
  for (const ScorePooling pooling : {ScorePooling::kMaxLogit, ScorePooling::kMaxLse,
                                     ScorePooling::kMaxSoftmax, ScorePooling::kMeanSoftmax}) {
    const auto scanner = NewProjectedScanner({.layout = {.dim = 16, .block_size = 32},
                                              .scale = 0.25f,
                                              .pooling = pooling,
                                              .keys = identity.data()},
                                             *context.layout);
    ASSERT_EQ(scanner->Prepare(context, kTokens), kTokens);
    ScoredTokens found;
    found.Reset(1, kTokens);
    scanner->Scan(context, query.data(), 0, kTokens, kTokens, ScanReach::kAll, &found);
    ASSERT_EQ(found.counts[0], kTokens);
    // In double, from the keys themselves.
    std::vector<std::vector<double>> logits(2);
    double lse[2];
    for (int h = 0; h < 2; ++h) {
      double sum = 0;
      for (int t = 0; t < kTokens; ++t) {
        const std::vector<float> key = sequence.Key(0, 0, t);
        double dot = 0;
        for (int i = 0; i < 16; ++i) dot += double{query[h * 16 + i]} * key[i];
        logits[h].push_back(dot / 4);
        sum += std::exp(dot / 4);
      }
      lse[h] = std::log(sum);
    }
    for (int t = 0; t < kTokens; ++t) {
      const double raw = std::max(logits[0][t], logits[1][t]);
      const double a = logits[0][t] - lse[0], b = logits[1][t] - lse[1];
      const double wanted = pooling == ScorePooling::kMaxLogit ? raw
                            : pooling == ScorePooling::kMeanSoftmax
                                ? std::log((std::exp(a) + std::exp(b)) / 2)
                                : std::max(a, b);
      EXPECT_NEAR(found.scores_of(0)[t], wanted, 0.6) << ScorePoolingName(pooling) << " " << t;
    }
  }
}

}  // namespace
}  // namespace tokenbutler
