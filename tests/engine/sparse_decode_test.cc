// Sparse decoding through the whole model: policies, device tier and kernels together.
#include <memory>
#include <string>
#include <vector>

#include "engine/selection/attention_params.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_conversation.h"

namespace tokenbutler {
namespace {

struct Case {
  AttentionPolicy policy;
  int interval;
  int candidates;
};

class SparseDecodeTest : public ::testing::TestWithParam<Case> {
 protected:
  AttentionParams Params(int token_budget) const {
    AttentionParams params;
    params.policy = GetParam().policy;
    params.token_budget = token_budget;
    params.sink_tokens = 4;
    params.local_window = 16;
    params.prediction_interval = GetParam().interval;
    params.candidates = GetParam().candidates == 0 ? 0 : GetParam().candidates + token_budget;
    return params;
  }
};

TEST_P(SparseDecodeTest, ABudgetForAllTokensGivesTheDenseLogits) {
  // h2o gathers all tokens, for their weights: the same bits as dense attention in blocks of 64.
  const int block_size = GetParam().policy == AttentionPolicy::kH2o ? 64 : 16;
  auto model = LoadTiny("qwen2-yarn", {.block_size = block_size, .num_blocks = 512});
  const std::vector<float> dense = Converse(*model, {}, 16);
  EXPECT_EQ(Converse(*model, Params(200), 16), dense);
}

TEST_P(SparseDecodeTest, ASmallBudgetIsKeptAtEveryStep) {
  auto model = LoadTiny("qwen2-yarn", {.num_blocks = 512});
  const AttentionParams params = Params(50);
  BlockTable sequence = model->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = model->NewState(params);
  model->Prefill(sequence, TinyTokens(100, 1), 32, state.get());
  for (const int32_t token : TinyTokens(60, 2)) {
    const AttentionStats before = state->stats();
    model->Decode(sequence, {&token, 1}, state.get());
    const AttentionStats after = state->stats();
    const int64_t lists = after.attended_lists - before.attended_lists;
    EXPECT_GT(lists, 0);
    EXPECT_LE(after.attended_tokens - before.attended_tokens, 50 * lists);
    EXPECT_GE(after.attended_tokens - before.attended_tokens, 20 * lists);
  }
}

TEST_P(SparseDecodeTest, TheResultDoesNotDependOnTheChunksOfThePrefill) {
  auto model = LoadTiny("qwen2-yarn", {.num_blocks = 1024});
  const std::vector<float> whole = Converse(*model, Params(60), 512);
  for (const int chunk : {1, 7, 64}) {
    EXPECT_LT(MaxAbsDifference(Converse(*model, Params(60), chunk), whole), 2e-4) << chunk;
  }
}

// Rows that another sequence wrote: what the policy derives from them is the same.
TEST_P(SparseDecodeTest, AdoptedRowsDecodeLikeOnesOfAnOwnPrefill) {
  if (GetParam().policy == AttentionPolicy::kH2o || GetParam().policy == AttentionPolicy::kSnapKv) {
    GTEST_SKIP() << "chooses by the prompt's queries, which adopted rows do not have";
  }
  auto model = LoadTiny("qwen2-yarn", {.num_blocks = 512});
  const AttentionParams params = Params(50);
  BlockTable own = model->NewSequence(200, params);
  const std::unique_ptr<SequenceState> own_state = model->NewState(params);
  model->Prefill(own, TinyTokens(100, 1), 512, own_state.get());

  BlockTable adopted = model->NewSequence(200, params);
  model->Prefill(adopted, TinyTokens(100, 1), 512);  // dense, no state
  const std::unique_ptr<SequenceState> adopted_state = model->NewState(params);
  ASSERT_TRUE(model->runner().AdoptRows(adopted, {}, adopted_state.get()).ok());
  EXPECT_EQ(model->Decode(adopted, TinyTokens(60, 2), adopted_state.get()),
            model->Decode(own, TinyTokens(60, 2), own_state.get()));
}

// xkv attends to all tokens, by rows of its own making once the budget does not hold them.
TEST(LowRankDecodeTest, StandsInForAllTokens) {
  auto model = LoadTiny("qwen2-yarn", {.num_blocks = 1024});
  AttentionParams params = DefaultParams(AttentionPolicy::kXkv);
  params.token_budget = 200;
  const std::vector<float> dense = Converse(*model, {}, 16);
  EXPECT_EQ(Converse(*model, params, 16), dense);
  params.token_budget = 60;
  const std::vector<float> low_rank = Converse(*model, params, 16);
  EXPECT_GT(MaxAbsDifference(low_rank, dense), 1e-3) << "four of sixteen ranks";
  EXPECT_LT(MaxAbsDifference(Converse(*model, params, 7), low_rank), 2e-2);

  BlockTable sequence = model->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = model->NewState(params);
  model->Prefill(sequence, TinyTokens(100, 1), 32, state.get());
  model->Decode(sequence, TinyTokens(20, 2), state.get());
  const AttentionStats stats = state->stats();
  EXPECT_EQ(stats.attended_tokens, stats.context_tokens);
  EXPECT_EQ(stats.fallbacks.short_context, 0);
}

TEST(AdoptRowsTest, RefusesWhatDoesNotFitTheSequence) {
  auto model = LoadTiny("qwen2-yarn", {.num_blocks = 64});
  const AttentionParams params{
      .policy = AttentionPolicy::kExact, .token_budget = 50, .sink_tokens = 4, .local_window = 16};
  BlockTable table = model->NewSequence(32, params);
  const std::unique_ptr<SequenceState> state = model->NewState(params);
  table.num_tokens = 33;
  EXPECT_THAT(std::string(model->runner().AdoptRows(table, {}, state.get()).message()),
              ::testing::HasSubstr("num_tokens is 33, must be in [0, 32]"));
  table.num_tokens = 32;
  const std::vector<PrefillQueries> queries(1);
  EXPECT_THAT(std::string(model->runner().AdoptRows(table, queries, state.get()).message()),
              ::testing::HasSubstr("queries are those of 1 layers"));
}

// What a policy looks at to choose: all tokens between sink and window, at every step or every few.
TEST(ScoredTokensTest, CountsWhatScansLookAt) {
  auto model = LoadTiny("qwen2-yarn", {.num_blocks = 512});
  const ModelConfig& config = model->runner().config();
  const int64_t lists = int64_t{config.num_layers} * config.num_kv_heads;
  AttentionParams params;
  params.policy = AttentionPolicy::kExact;
  params.token_budget = 50;
  params.sink_tokens = 4;
  params.local_window = 16;
  const auto scored = [&](const AttentionParams& attention) {
    BlockTable sequence = model->NewSequence(120, attention);
    const std::unique_ptr<SequenceState> state = model->NewState(attention);
    model->Prefill(sequence, TinyTokens(100, 1), 32, state.get());
    model->Decode(sequence, TinyTokens(2, 2), state.get());
    return state->stats().scored_tokens;
  };
  EXPECT_EQ(scored(params), lists * (101 - 20 + 102 - 20));
  params.prediction_interval = 16;  // the second step scans for none of the few layers
  ASSERT_LT(config.num_layers, 15);
  EXPECT_EQ(scored(params), lists * (101 - 20));
  params.policy = AttentionPolicy::kRandom;
  EXPECT_EQ(scored(params), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, SparseDecodeTest,
    ::testing::Values(Case{AttentionPolicy::kExact, 1, 0}, Case{AttentionPolicy::kExact, 16, 0},
                      Case{AttentionPolicy::kExact, 4, 20}, Case{AttentionPolicy::kSketch, 1, 0},
                      Case{AttentionPolicy::kSketch, 16, 0}, Case{AttentionPolicy::kSketch, 4, 20},
                      Case{AttentionPolicy::kPca, 1, 0}, Case{AttentionPolicy::kPca, 16, 0},
                      Case{AttentionPolicy::kPca, 4, 20}, Case{AttentionPolicy::kRandom, 1, 0},
                      Case{AttentionPolicy::kRandom, 16, 0}, Case{AttentionPolicy::kSnapKv, 1, 0},
                      Case{AttentionPolicy::kH2o, 1, 0},
                      Case{AttentionPolicy::kStreamingLlm, 1, 0}),
    [](const auto& info) {
      return std::string(PolicyName(info.param.policy)) + "Interval" +
             std::to_string(info.param.interval) + "Candidates" +
             std::to_string(info.param.candidates);
    });

}  // namespace
}  // namespace tokenbutler
