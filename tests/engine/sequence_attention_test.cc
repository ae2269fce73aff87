#include "engine/sequence_attention.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

// `x`, one head after RoPE, moved by `distance` positions.
std::vector<double> Moved(const Rope& rope, const float* x, int distance) {
  const int half = rope.half_dim();
  std::vector<double> moved(static_cast<size_t>(2) * half);
  for (int i = 0; i < half; ++i) {
    const double angle = double{rope.inverse_frequencies()[i]} * distance;
    moved[i] = x[i] * std::cos(angle) - x[half + i] * std::sin(angle);
    moved[half + i] = x[half + i] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return moved;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i];
  return dot;
}

// StreamingLLM keeps keys unrotated and gives them positions 0, 1, ... inside the cache. Its logits
// come out of keys that were cached after rotation by their true positions.
TEST(SequenceAttentionTest, StreamingLlmSeesPositionsInsideTheCache) {
  constexpr int kBudget = 20, kPrompt = 70;
  RopeConfig yarn;
  yarn.scaling = RopeConfig::Scaling::kYarn;
  yarn.factor = 4;
  yarn.original_max_position = 32;
  for (const RopeConfig& rope_config : {RopeConfig(), yarn}) {
    AttentionParams params = DefaultParams(AttentionPolicy::kStreamingLlm);
    params.token_budget = kBudget;
    FakeSequence sequence({.dtype = DType::kF32, .rope = rope_config}, params, 128);
    const auto created = SequenceAttention::Create(params, sequence.resources(), sequence.store(),
                                                   sequence.NewSelector(), /*max_tokens=*/512);
    ASSERT_TRUE(created.ok()) << created.status();
    SequenceAttention& attention = **created;
    sequence.Prefill(nullptr, kPrompt);
    sequence.Decode(nullptr);
    const float* query = sequence.Query(1, kPrompt);
    attention.Select(sequence.Context(1, kPrompt + 1), query, /*window=*/0);
    ASSERT_TRUE(attention.is_sparse());
    ASSERT_NE(attention.sink_query(), nullptr);
    ASSERT_EQ(attention.num_sink_rows(), 4);

    const Rope& rope = *sequence.resources().rope;
    const int head_dim = sequence.shape().head_dim;
    for (int head = 0; head < sequence.num_heads(); ++head) {
      const int kv_head = head / sequence.shape().group_size;
      const auto tokens = attention.selection().tokens_of(kv_head);
      ASSERT_EQ(tokens.size(), static_cast<size_t>(kBudget));
      for (int place = 0; place < kBudget; ++place) {
        const int token = tokens[place];
        const std::vector<float> key = sequence.Key(1, kv_head, token);
        const double published = Dot(Moved(rope, query + head * head_dim, kBudget - 1 - kPrompt),
                                     Moved(rope, key.data(), place - token));
        const float* used = place < attention.num_sink_rows() ? attention.sink_query() : query;
        const double ours = Dot(Moved(rope, used + head * head_dim, 0), Moved(rope, key.data(), 0));
        EXPECT_NEAR(ours, published, 1e-3) << "head " << head << " place " << place;
      }
    }
  }
}

TEST(SequenceAttentionTest, NoQueryIsMovedWhileNothingIsEvicted) {
  AttentionParams params = DefaultParams(AttentionPolicy::kStreamingLlm);
  params.token_budget = 20;
  FakeSequence sequence({}, params, 64);
  const auto created = SequenceAttention::Create(params, sequence.resources(), sequence.store(),
                                                 sequence.NewSelector(), /*max_tokens=*/512);
  ASSERT_TRUE(created.ok()) << created.status();
  sequence.Prefill(nullptr, 19);
  sequence.Decode(nullptr);
  (*created)->Select(sequence.Context(0, 20), sequence.Query(0, 19), 0);
  EXPECT_FALSE((*created)->is_sparse());
  EXPECT_EQ((*created)->sink_query(), nullptr);
}

// Quest's first two layers attend to everything.
TEST(SequenceAttentionTest, APolicysDenseLayersAreCountedAsSuch) {
  AttentionParams params = DefaultParams(AttentionPolicy::kQuest);
  params.token_budget = 48;
  FakeSequence sequence({.num_layers = 3}, params, 128);
  const auto created = SequenceAttention::Create(params, sequence.resources(), sequence.store(),
                                                 sequence.NewSelector(), /*max_tokens=*/512);
  ASSERT_TRUE(created.ok()) << created.status();
  SequenceAttention& attention = **created;
  sequence.Prefill(nullptr, 99);
  for (int layer = 0; layer < 3; ++layer) {
    attention.ObservePrefill(sequence.Context(layer, 99), {});
  }
  sequence.Decode(nullptr);
  for (int layer = 0; layer < 3; ++layer) {
    attention.Select(sequence.Context(layer, 100), sequence.Query(layer, 99), 0);
    EXPECT_EQ(attention.is_sparse(), layer == 2);
  }
  EXPECT_EQ(attention.stats().fallbacks.first_layer, 2);
}

}  // namespace
}  // namespace tokenbutler
