#include "engine/selection/xkv.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "Eigen/SVD"
#include "engine/selection/kv_rows.h"
#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

constexpr int kPrompt = 150;

AttentionParams Params(int token_budget = 64) {
  AttentionParams params = DefaultParams(AttentionPolicy::kXkv);
  params.token_budget = token_budget;
  return params;
}

// Turns a head by `position` times its frequencies: forwards or backwards.
void Turn(const FakeSequence& sequence, double position, double* head) {
  const auto frequencies = sequence.resources().rope->inverse_frequencies();
  const int half = sequence.shape().head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position * frequencies[i];
    const double a = head[i], b = head[half + i];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[half + i] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// The published rule for one group of layers: the prompt's rows of all its layers and KV heads side
// by side, keys turned back to position 0; the truncated singular value decomposition; keys turned
// forwards again. [kPrompt, layers of the group * num_kv_heads * head_dim]
Eigen::MatrixXd Approximated(const FakeSequence& sequence, int group, bool keys) {
  const SelectionShape& shape = sequence.shape();
  const int first = 4 * group, last = std::min(first + 4, shape.num_layers);
  const int num_heads = (last - first) * shape.num_kv_heads;
  Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> matrix(
      kPrompt, num_heads * shape.head_dim);
  for (int t = 0; t < kPrompt; ++t) {
    for (int h = 0; h < num_heads; ++h) {
      const int layer = first + h / shape.num_kv_heads, kv_head = h % shape.num_kv_heads;
      const std::vector<float> row =
          keys ? sequence.Key(layer, kv_head, t) : sequence.Value(layer, kv_head, t);
      double* head = &matrix(t, h * shape.head_dim);
      std::copy(row.begin(), row.end(), head);
      if (keys) Turn(sequence, -t, head);
    }
  }
  const int hidden_size = sequence.num_heads() * shape.head_dim;
  const int rank = std::min<int>((keys ? 512 : 768) * hidden_size / 4096,
                                 static_cast<int>(std::min(matrix.rows(), matrix.cols())));
  const Eigen::BDCSVD<Eigen::MatrixXd> svd(matrix, Eigen::ComputeThinU | Eigen::ComputeThinV);
  matrix = svd.matrixU().leftCols(rank) * svd.singularValues().head(rank).asDiagonal() *
           svd.matrixV().leftCols(rank).transpose();
  for (int t = 0; t < kPrompt && keys; ++t) {
    for (int h = 0; h < num_heads; ++h) Turn(sequence, t, &matrix(t, h * shape.head_dim));
  }
  return matrix;
}

// Checks the rows of a layer that a decode step of the sequence reads.
void ExpectStandIn(FakeSequence& sequence, TokenSelector& selector, int layer) {
  const SelectionShape& shape = sequence.shape();
  const int context_len = sequence.length();
  const LayerContext context = sequence.Context(layer, context_len);
  const absl::Span<std::byte* const> blocks = selector.StandIn(context);
  ASSERT_EQ(blocks.size(), context.blocks.size());
  const Eigen::MatrixXd matrices[] = {Approximated(sequence, layer / 4, true),
                                      Approximated(sequence, layer / 4, false)};
  std::vector<float> row(static_cast<size_t>(shape.head_dim));
  for (int t = 0; t < context_len; ++t) {
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      const KvRow at{context.layout, blocks, layer, h, t};
      for (const bool keys : {true, false}) {
        keys ? at.LoadKey(row.data()) : at.LoadValue(row.data());
        if (t >= kPrompt) {
          EXPECT_EQ(row, keys ? sequence.Key(layer, h, t) : sequence.Value(layer, h, t));
          continue;
        }
        const int column = (layer % 4 * shape.num_kv_heads + h) * shape.head_dim;
        for (int i = 0; i < shape.head_dim; ++i) {
          ASSERT_NEAR(row[i], matrices[keys ? 0 : 1](t, column + i), 0.05)
              << (keys ? "key" : "value") << " of token " << t << ", head " << h;
        }
      }
    }
  }
}

class XkvTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(GroupSizes, XkvTest, testing::Values(1, 3, 7));

// Two groups of layers, the second one smaller. The prompt ends inside a block.
TEST_P(XkvTest, StandsInAsPublished) {
  FakeSequence sequence({.num_layers = 6, .group_size = GetParam()}, Params(), 300);
  const auto selector = sequence.NewSelector();
  ASSERT_NE(selector, nullptr);
  sequence.Prefill(selector.get(), kPrompt, 64);
  for (const int layer : {0, 3, 5}) {
    if (sequence.length() == kPrompt) sequence.Decode(selector.get());
    ExpectStandIn(sequence, *selector, layer);
    for (int step = 0; step < 15; ++step) sequence.Decode(selector.get());
  }
}

TEST(XkvRuleTest, ChunksOfThePromptChangeNothing) {
  std::vector<float> whole;
  for (const int chunk : {1000, 1, 7, 64}) {
    FakeSequence sequence({.num_layers = 2}, Params(), 300);
    const auto selector = sequence.NewSelector();
    sequence.Prefill(selector.get(), kPrompt, chunk);
    sequence.Decode(selector.get());
    const LayerContext context = sequence.Context(1, sequence.length());
    const KvRow at{context.layout, selector->StandIn(context), 1, 1, 140};
    std::vector<float> row(static_cast<size_t>(context.layout->head_dim));
    at.LoadKey(row.data());
    if (whole.empty()) whole = row;
    EXPECT_EQ(row, whole) << "chunk " << chunk;
  }
}

// With as many ranks as columns nothing is lost but the last bits.
TEST(XkvRuleTest, FullRankGivesTheRowsBack) {
  FakeSequence sequence({.num_layers = 1, .num_kv_heads = 1, .group_size = 9}, Params(), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), kPrompt);
  sequence.Decode(selector.get());
  const LayerContext context = sequence.Context(0, sequence.length());
  const absl::Span<std::byte* const> blocks = selector->StandIn(context);
  std::vector<float> row(static_cast<size_t>(context.layout->head_dim));
  for (const int t : {0, 31, 32, 149, 150}) {
    KvRow{context.layout, blocks, 0, 0, t}.LoadKey(row.data());
    const std::vector<float> key = sequence.Key(0, 0, t);
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(row[i], key[i], 0.04) << "token " << t;
  }
}

TEST(XkvRuleTest, ForksShareThePromptAndKeepTheirOwnAnswers) {
  FakeSequence sequence({.num_layers = 4}, Params(), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), kPrompt);
  sequence.Decode(selector.get());
  const auto fork = sequence.Fork(3);
  const auto clone = selector->Clone();
  for (int step = 0; step < 12; ++step) {
    sequence.Decode(selector.get());
    fork->Decode(clone.get());
  }
  ExpectStandIn(sequence, *selector, 2);
  ExpectStandIn(*fork, *clone, 2);
}

// A second prompt is factored with everything before it.
TEST(XkvRuleTest, ASecondPromptIsFactoredAnew) {
  FakeSequence sequence({.num_layers = 2}, Params(), 300);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 100);
  for (int step = 0; step < 10; ++step) sequence.Decode(selector.get());
  sequence.Prefill(selector.get(), kPrompt - 110, 13);
  sequence.Decode(selector.get());
  ExpectStandIn(sequence, *selector, 0);
  ExpectStandIn(sequence, *selector, 1);
}

}  // namespace
}  // namespace tokenbutler
