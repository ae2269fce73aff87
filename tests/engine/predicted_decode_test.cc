// Sparse decoding through the whole model by predictors: files of every kind, every combination of
// query and keys.
#include <memory>
#include <string>
#include <vector>

#include "engine/models/rope.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/testing/tiny_conversation.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

constexpr int kBudget = 60;

absl::StatusOr<std::unique_ptr<LoadedRunner>> LoadWith(std::shared_ptr<const Predictor> predictor,
                                                       DType dtype = DType::kF32) {
  LoadedRunner::Options options{.compute_dtype = dtype, .num_blocks = 1024};
  if (predictor != nullptr && predictor->kind == PredictorKind::kPca) {
    options.runner.pca = std::move(predictor);
  } else {
    options.runner.predictor = std::move(predictor);
  }
  return LoadedRunner::Load(TinyModelPath("qwen2-yarn"), options);
}

ModelFingerprint TinyFingerprint() {
  const ModelConfig config = (*LoadWith(nullptr))->runner().config();
  return FingerprintOf(config, *Rope::Create(config.rope, config.head_dim, config.max_position));
}

struct Case {
  std::string name;
  PredictorKind kind;
  bool has_late;
  std::optional<QuerySource> query;
  std::optional<KeyFormat> keys;
  int interval;
  int candidates;
  bool bits_alone = false;  // a file without projections
};

class PredictedDecodeTest : public ::testing::TestWithParam<Case> {
 protected:
  static std::shared_ptr<const Predictor> File() {
    auto predictor = std::make_shared<Predictor>(RandomPredictor(
        GetParam().kind, TinyFingerprint(), /*projected_dim=*/8, /*layers_per_predictor=*/1));
    if (!GetParam().has_late) predictor->late_projection.clear();
    if (GetParam().bits_alone) *predictor = RandomBitsPredictor(TinyFingerprint(), 1);
    return predictor;
  }
  static AttentionParams Params(int token_budget) {
    AttentionParams params;
    params.policy = GetParam().kind == PredictorKind::kPca ? AttentionPolicy::kPca
                                                           : AttentionPolicy::kTokenButler;
    params.token_budget = token_budget;
    params.sink_tokens = 4;
    params.local_window = 16;
    params.prediction_interval = GetParam().interval;
    params.candidates = GetParam().candidates == 0 ? 0 : GetParam().candidates + token_budget;
    params.query = GetParam().query;
    params.keys = GetParam().keys;
    return params;
  }
};

TEST_P(PredictedDecodeTest, ABudgetForAllTokensGivesTheDenseLogits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    auto model = *LoadWith(File(), dtype);
    EXPECT_EQ(Converse(*model, Params(200), 16), Converse(*model, {}, 16));
  }
}

TEST_P(PredictedDecodeTest, ASmallBudgetIsKeptAtEveryStep) {
  auto model = *LoadWith(File());
  const AttentionParams params = Params(kBudget);
  BlockTable sequence = model->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = model->NewState(params);
  model->Prefill(sequence, TinyTokens(100, 1), 32, state.get());
  // Layer 0 stays dense where nothing can choose for it.
  const bool first_is_dense = GetParam().kind == PredictorKind::kTokenButler &&
                              !GetParam().has_late && !GetParam().keys.has_value();
  int context_len = 100;
  for (const int32_t token : TinyTokens(60, 2)) {
    ++context_len;
    const AttentionStats before = state->stats();
    model->Decode(sequence, {&token, 1}, state.get());
    const AttentionStats after = state->stats();
    const int64_t attended = after.attended_tokens - before.attended_tokens;
    const int64_t dense = first_is_dense ? 2 * context_len : 0;
    EXPECT_EQ(after.attended_lists - before.attended_lists, 4);
    EXPECT_LE(attended, dense + kBudget * (first_is_dense ? 2 : 4));
    EXPECT_GE(attended, dense + 20 * (first_is_dense ? 2 : 4));
  }
}

TEST_P(PredictedDecodeTest, TheResultDoesNotDependOnTheChunksOfThePrefill) {
  auto model = *LoadWith(File());
  const std::vector<float> whole = Converse(*model, Params(kBudget), 512);
  for (const int chunk : {1, 7, 64}) {
    EXPECT_LT(MaxAbsDifference(Converse(*model, Params(kBudget), chunk), whole), 2e-4) << chunk;
  }
}

TEST_P(PredictedDecodeTest, AForkGivesWhatTheWholeGives) {
  auto model = *LoadWith(File());
  const AttentionParams params = Params(kBudget);
  const std::vector<int32_t> first = TinyTokens(90, 3), second = TinyTokens(30, 4);
  BlockTable sequence = model->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = model->NewState(params);
  model->Prefill(sequence, first, 32, state.get());
  model->Decode(sequence, TinyTokens(10, 5), state.get());
  BlockTable copy = model->NewSequence(200, params);
  for (size_t b = 0; b < sequence.blocks.size(); ++b) {
    model->runner().CopyBlock(sequence.blocks[b], copy.blocks[b]);
  }
  for (size_t b = 0; b < sequence.state_blocks.size(); ++b) {
    model->runner().CopyBlock(sequence.state_blocks[b], copy.state_blocks[b]);
  }
  copy.num_tokens = sequence.num_tokens;
  auto fork = model->runner().ForkState(*state);
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ(model->Decode(copy, second, fork->get()), model->Decode(sequence, second, state.get()));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PredictedDecodeTest,
    ::testing::Values(
        Case{"Published", PredictorKind::kTokenButler, false, {}, {}, 1, 0},
        Case{"PublishedInterval16", PredictorKind::kTokenButler, false, {}, {}, 16, 0},
        Case{"MlpLateDecision", PredictorKind::kTokenButler, true, {}, {}, 4, 20},
        Case{"MlpKeysRealQuery", PredictorKind::kTokenButler, true, QuerySource::kReal, {}, 1, 0},
        Case{"Lookahead", PredictorKind::kLookahead, true, {}, {}, 1, 0},
        Case{"LookaheadInterval16", PredictorKind::kLookahead, false, {}, {}, 16, 0},
        Case{"LookaheadLateDecision", PredictorKind::kLookahead, true, {}, {}, 1, 20},
        Case{"LookaheadOnBits", PredictorKind::kLookahead, false, {}, KeyFormat::kBits4, 1, 20},
        Case{"CorrectedBits", PredictorKind::kLookahead, false, {}, {}, 1, 0, true},
        Case{"CorrectedBitsLate",
             PredictorKind::kLookahead,
             false,
             {},
             KeyFormat::kBits1,
             4,
             20,
             true},
        Case{"PcaFile", PredictorKind::kPca, false, {}, {}, 4, 20},
        Case{"PcaFileLookahead", PredictorKind::kPca, false, QuerySource::kLookahead, {}, 1, 0}),
    [](const auto& info) { return info.param.name; });

std::string CheckError(const AttentionParams& params, std::shared_ptr<const Predictor> predictor) {
  auto model = LoadWith(std::move(predictor));
  EXPECT_TRUE(model.ok()) << model.status();
  return std::string((*model)->runner().CheckAttention(params).message());
}

TEST(PredictedPoliciesTest, SayWhatTheyLack) {
  AttentionParams params;
  params.policy = AttentionPolicy::kTokenButler;
  EXPECT_THAT(CheckError(params, nullptr), HasSubstr("the server was given none"));
  auto published =
      std::make_shared<Predictor>(RandomPredictor(PredictorKind::kTokenButler, TinyFingerprint()));
  published->late_projection.clear();
  EXPECT_EQ(CheckError(params, published), "");
  params.candidates = params.token_budget + 1;
  EXPECT_THAT(CheckError(params, published), HasSubstr("attention.candidates is 4097, must be 0"));
  params.candidates = 0;
  params.query = QuerySource::kReal;
  EXPECT_THAT(CheckError(params, published), HasSubstr("attention.query is \"real\", but"));
  params.query = QuerySource::kLookahead;
  EXPECT_THAT(CheckError(params, published), HasSubstr("attention.query is \"lookahead\", but"));
  params.query = QuerySource::kMlp;
  params.keys = KeyFormat::kBits2;
  EXPECT_THAT(CheckError(params, published), HasSubstr("needs attention.keys \"projected\""));
  params.keys = {};
  const auto lookahead =
      std::make_shared<Predictor>(RandomPredictor(PredictorKind::kLookahead, TinyFingerprint()));
  EXPECT_THAT(CheckError(params, lookahead), HasSubstr("is of kind \"lookahead\""));
  params.query = {};
  const auto bits = std::make_shared<Predictor>(RandomBitsPredictor(TinyFingerprint()));
  EXPECT_EQ(CheckError(params, bits), "");
  params.keys = KeyFormat::kProjected;
  EXPECT_THAT(CheckError(params, bits),
              HasSubstr("attention.keys is \"projected\", must be bits1, bits2 or bits4"));
  params.keys = {};
  params.query = QuerySource::kMlp;
  params.policy = AttentionPolicy::kSketch;
  EXPECT_THAT(CheckError(params, nullptr), HasSubstr("must be real or lookahead"));
  params.query = {};
  params.keys = KeyFormat::kProjected;
  EXPECT_THAT(CheckError(params, nullptr), HasSubstr("must be bits1, bits2 or bits4"));
  params.policy = AttentionPolicy::kPca;
  EXPECT_EQ(CheckError(params, nullptr), "");
  params.keys = KeyFormat::kBits2;
  EXPECT_THAT(CheckError(params, nullptr), HasSubstr("must be projected"));
  params.keys = {};
  params.projected_dim = 24;
  EXPECT_THAT(CheckError(params, nullptr), HasSubstr("must be 16 or 32"));
}

TEST(PredictedPoliciesTest, TheRunnerRefusesPredictorsOfOtherArchitectures) {
  ModelFingerprint other = TinyFingerprint();
  other.num_layers = 3;
  const auto model =
      LoadWith(std::make_shared<Predictor>(RandomPredictor(PredictorKind::kLookahead, other)));
  EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(model.status().message()),
              HasSubstr("num_layers is 3, the model's is 2"));
}

// The second of two layers gets its query early; when all tokens are candidates, the real query
// decides after all.
TEST(PredictedPoliciesTest, LateDecisionsMendEarlyOnes) {
  auto model = *LoadWith(nullptr);
  AttentionParams params;
  params.policy = AttentionPolicy::kSketch;
  params.token_budget = kBudget;
  params.sink_tokens = 4;
  params.local_window = 16;
  params.keys = KeyFormat::kBits4;
  const auto run = [&](std::optional<QuerySource> query, int candidates) {
    params.query = query;
    params.candidates = candidates;
    BlockTable sequence = model->NewSequence(200, params);
    const std::unique_ptr<SequenceState> state = model->NewState(params);
    model->Prefill(sequence, TinyTokens(120, 1), 32, state.get());
    return model->Decode(sequence, TinyTokens(20, 2), state.get());
  };
  const std::vector<float> real = run(QuerySource::kReal, 0);
  const double early = MaxAbsDifference(run(QuerySource::kLookahead, 0), real);
  const double late = MaxAbsDifference(run(QuerySource::kLookahead, 200), real);
  EXPECT_GT(early, 0);
  EXPECT_LT(late, early);
}

}  // namespace
}  // namespace tokenbutler
