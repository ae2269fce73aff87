// What probes find out about selections, through the whole model.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/selection/attention_params.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/loaded_runner.h"

namespace tokenbutler {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Token ids without a pattern; the tiny models have 96.
std::vector<int32_t> Tokens(int count, uint32_t seed) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761u + 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 16) % 96));
  }
  return ids;
}

// Two layers with two KV heads of two query heads each.
class SelectionProbeTest : public ::testing::Test {
 protected:
  static constexpr int kPrompt = 100, kDecoded = 40;

  void Load(double probe_rate) {
    LoadedRunner::Options options{.num_blocks = 512};
    options.runner.recall_probe_rate = probe_rate;
    auto loaded =
        LoadedRunner::Load(std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-yarn", options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
  }

  static AttentionParams Params(AttentionPolicy policy, int token_budget) {
    AttentionParams params{.policy = policy, .token_budget = token_budget};
    params.sink_tokens = 1;
    params.local_window = 1;
    return params;
  }

  // The state of a sequence that has decoded kDecoded tokens behind its prompt.
  std::unique_ptr<SequenceState> Decoded(const AttentionParams& params, const ProbeParams& wanted) {
    BlockTable sequence = model_->NewSequence(200, params);
    std::unique_ptr<SequenceState> state = model_->NewState(params);
    if (wanted.any()) state->Probe(wanted);
    model_->Prefill(sequence, Tokens(kPrompt, 1), 32, state.get());
    model_->Decode(sequence, Tokens(kDecoded, 2), state.get());
    return state;
  }

  std::unique_ptr<LoadedRunner> model_;
};

TEST_F(SelectionProbeTest, TheOracleRecallsMoreThanRandomTokensAndAllTokensRecallAll) {
  Load(1);
  const auto recall = [&](AttentionPolicy policy, int token_budget) {
    const AttentionStats stats = Decoded(Params(policy, token_budget), {})->stats();
    EXPECT_EQ(stats.recall_probes, kDecoded);
    return stats.recall_sum / static_cast<double>(stats.recall_probes);
  };
  const double oracle = recall(AttentionPolicy::kExact, 30);
  const double random = recall(AttentionPolicy::kRandom, 30);
  EXPECT_GT(oracle, random + 0.02);
  EXPECT_LT(oracle, 0.999);
  // 99 of 101 to 140 tokens, the best ones.
  EXPECT_GT(recall(AttentionPolicy::kExact, 99), 0.95);
}

TEST_F(SelectionProbeTest, TheRateCountsLayersPerStep) {
  for (const auto& [rate, probes] :
       {std::pair{0.25, 10}, {1.0, 40}, {1.5, 60}, {2.0, 80}, {9.0, 80}}) {
    Load(rate);
    const auto state = Decoded(Params(AttentionPolicy::kExact, 30), {.per_head = true});
    EXPECT_EQ(state->stats().recall_probes, probes) << rate;
    ASSERT_THAT(state->probes().layers, SizeIs(2));
    for (const LayerProbes& layer : state->probes().layers) {
      EXPECT_EQ(layer.count, probes / 2) << "layers take turns";
    }
  }
}

TEST_F(SelectionProbeTest, ExactOverlapsWithItselfAndOthersLess) {
  Load(2);
  const auto overlap = [&](AttentionPolicy policy) {
    const auto state = Decoded(Params(policy, 30), {.per_head = true});
    double sum = 0;
    for (const HeadProbes& head : state->probes().heads) {
      EXPECT_EQ(head.count, kDecoded);
      EXPECT_EQ(head.choices, kDecoded);
      sum += head.overlap / kDecoded / 4;
    }
    return sum;
  };
  EXPECT_EQ(overlap(AttentionPolicy::kExact), 1);
  // A quarter of the tokens by chance; 28 of 99 to 138 are chosen.
  EXPECT_NEAR(overlap(AttentionPolicy::kRandom), 0.24, 0.05);
  const double sketch = overlap(AttentionPolicy::kSketch);
  EXPECT_GT(sketch, 0.6);
  EXPECT_LE(sketch, 1);
}

TEST_F(SelectionProbeTest, HeadsAddUpToTheRecallOfAll) {
  Load(2);
  const auto state = Decoded(Params(AttentionPolicy::kRandom, 30), {.per_head = true});
  ASSERT_THAT(state->probes().heads, SizeIs(4));
  double mass = 0;
  for (const HeadProbes& head : state->probes().heads) mass += head.mass / 2;  // KV heads a layer
  EXPECT_NEAR(mass, state->stats().recall_sum, 1e-6);
}

TEST_F(SelectionProbeTest, WatchedTokensAreCoveredAsTheyAreAttendedTo) {
  Load(2);
  const AttentionParams params = Params(AttentionPolicy::kStreamingLlm, 30);
  // The sink token is always attended to, number 50 never.
  const auto state = Decoded(params, {.watched = {0, 50}});
  double mass = 0, attended_mass = 0;
  for (const HeadProbes& head : state->probes().heads) {
    EXPECT_EQ(head.watched, 0.5 * kDecoded);
    EXPECT_GT(head.watched_mass, head.attended_watched_mass);
    mass += head.watched_mass;
    attended_mass += head.attended_watched_mass;
  }
  EXPECT_GT(attended_mass, 0);
  EXPECT_LT(mass, 4 * kDecoded);
  for (const LayerProbes& layer : state->probes().layers) {
    EXPECT_EQ(layer.watched_by_any, 0.5 * kDecoded);
  }
  // By any head is at least by the mean head, and all tokens are more than some.
  const auto random = Decoded(Params(AttentionPolicy::kRandom, 30), {.watched = {20, 30, 40, 50}});
  for (int l = 0; l < 2; ++l) {
    const HeadProbes* heads = &random->probes().heads[2 * l];
    EXPECT_GT(random->probes().layers[l].watched_by_any, (heads[0].watched + heads[1].watched) / 2);
  }
}

TEST_F(SelectionProbeTest, AllWatchedTokensHaveAllTheMassTogether) {
  Load(2);
  std::vector<int32_t> all(kPrompt);
  for (int i = 0; i < kPrompt; ++i) all[i] = i;
  // At the first decode step only the newest token is not watched.
  ProbeParams wanted = {.watched = all};
  AttentionParams params = Params(AttentionPolicy::kExact, 90);
  BlockTable sequence = model_->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = model_->NewState(params);
  state->Probe(wanted);
  model_->Prefill(sequence, Tokens(kPrompt, 1), 32, state.get());
  model_->Decode(sequence, Tokens(1, 2), state.get());
  for (const HeadProbes& head : state->probes().heads) {
    EXPECT_GT(head.watched_mass, 0.9);
    EXPECT_LT(head.watched_mass, 1);
    EXPECT_NEAR(head.watched, 0.89, 1e-9);  // of 90, one is the newest
    EXPECT_GT(head.attended_watched_mass, 0.89 * head.watched_mass);
    EXPECT_LE(head.attended_watched_mass, head.watched_mass);
  }
}

TEST_F(SelectionProbeTest, ProbesBeginAtTheirPosition) {
  Load(2);
  const auto state = Decoded(Params(AttentionPolicy::kExact, 30),
                             {.per_head = true, .from_position = kPrompt + 37});
  EXPECT_EQ(state->stats().recall_probes, 6);
}

TEST_F(SelectionProbeTest, NothingIsKeptThatNobodyWants) {
  Load(1);
  const auto state = Decoded(Params(AttentionPolicy::kExact, 30), {});
  EXPECT_THAT(state->probes().layers, IsEmpty());
  EXPECT_THAT(state->probes().heads, IsEmpty());
  EXPECT_GT(state->stats().recall_probes, 0);
}

}  // namespace
}  // namespace tokenbutler
