// The KV cache in each of its types, through the whole model.
#include <memory>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "engine/models/rope.h"
#include "engine/selection/attention_params.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/testing/tiny_conversation.h"

namespace tokenbutler {
namespace {

std::unique_ptr<LoadedRunner> LoadTiny(LoadedRunner::Options options) {
  options.num_blocks = 1024;
  return LoadTiny("qwen2-yarn", options);
}

AttentionParams Params(AttentionPolicy policy, int token_budget) {
  AttentionParams params = DefaultParams(policy);
  params.token_budget = token_budget;
  params.sink_tokens = 4;
  params.local_window = 16;
  return params;
}

// An untrained predictor for the tiny model.
std::shared_ptr<const Predictor> TinyPredictor() {
  const ModelConfig config = LoadTiny({})->runner().config();
  const Rope rope = *Rope::Create(config.rope, config.head_dim, config.max_position);
  return std::make_shared<const Predictor>(
      RandomPredictor(PredictorKind::kTokenButler, FingerprintOf(config, rope), /*projected_dim=*/8,
                      /*layers_per_predictor=*/1));
}

class KvDTypePolicyTest : public testing::TestWithParam<std::tuple<AttentionPolicy, DType>> {
 protected:
  AttentionPolicy policy() const { return std::get<0>(GetParam()); }
  LoadedRunner::Options Options() const {
    // Blocks of 64: what gathers all tokens then adds them up as dense attention does.
    LoadedRunner::Options options{.kv_dtype = std::get<1>(GetParam()), .block_size = 64};
    if (policy() == AttentionPolicy::kTokenButler) options.runner.predictor = TinyPredictor();
    return options;
  }
};

TEST_P(KvDTypePolicyTest, ABudgetForAllTokensGivesTheDenseLogits) {
  auto model = LoadTiny(Options());
  const std::vector<float> dense = Converse(*model, {});
  EXPECT_EQ(Converse(*model, Params(policy(), 200)), dense);
}

TEST_P(KvDTypePolicyTest, StagedGivesTheBitsOfDirectAndCountsItsBytes) {
  LoadedRunner::Options options = Options();
  options.block_size = 16;
  auto direct = LoadTiny(options);
  options.staged = KvStore::StagedOptions{.device_capacity_bytes = int64_t{16} << 20};
  auto staged = LoadTiny(options);
  AttentionParams params = Params(policy(), 60);
  OffloadCounters counters;
  EXPECT_EQ(Converse(*staged, params, 16, &counters), Converse(*direct, params));
  // 171 tokens; the last block is not complete yet. Rows and scales.
  const int64_t element = DTypeBytes(std::get<1>(GetParam()));
  const int64_t scales = std::get<1>(GetParam()) == DType::kI8 ? 2 * sizeof(float) : 0;
  const ModelConfig& config = direct->runner().config();
  const int64_t token_bytes =
      int64_t{config.num_layers} * config.num_kv_heads * (2 * config.head_dim * element + scales);
  EXPECT_EQ(counters.device_to_host_bytes, 160 * token_bytes);
  EXPECT_GT(counters.host_to_device_bytes, 0);
}

TEST_P(KvDTypePolicyTest, TheChunksOfThePrefillChangeLittle) {
  auto model = LoadTiny(Options());
  const AttentionParams params = Params(policy(), 200);
  const std::vector<float> whole = Converse(*model, params, 512);
  // Sums in another order may round a key or value to the next code.
  const double bound = std::get<1>(GetParam()) == DType::kF32 ? 2e-4 : 0.02;
  for (const int chunk : {1, 7, 64}) {
    EXPECT_LT(MaxAbsDifference(Converse(*model, params, chunk), whole), bound) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, KvDTypePolicyTest,
    testing::Combine(testing::Values(AttentionPolicy::kSketch, AttentionPolicy::kExact,
                                     AttentionPolicy::kTokenButler, AttentionPolicy::kPca,
                                     AttentionPolicy::kQuest, AttentionPolicy::kXkv,
                                     AttentionPolicy::kH2o, AttentionPolicy::kSnapKv),
                     testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kI8)),
    [](const auto& info) {
      return std::string(PolicyName(std::get<0>(info.param))) + "_" +
             std::string(DTypeName(std::get<1>(info.param)));
    });

// How far the logits may be from those of a float32 cache: what the type's rounding amounts to in
// this model, whose logits are a few units in size.
TEST(KvDTypeTest, LogitsAreNearThoseOfFloat32) {
  const std::vector<float> exact = Converse(*LoadTiny({}), {});
  const std::pair<DType, double> bounds[] = {
      {DType::kF16, 0.015}, {DType::kBF16, 0.08}, {DType::kI8, 0.35}};
  for (const auto& [dtype, bound] : bounds) {
    const double difference = MaxAbsDifference(Converse(*LoadTiny({.kv_dtype = dtype}), {}), exact);
    EXPECT_LT(difference, bound) << DTypeName(dtype);
    EXPECT_GT(difference, 0) << DTypeName(dtype) << ": was it used at all?";
  }
}

// The weights' type and the cache's are independent of each other.
TEST(KvDTypeTest, EveryPairOfTypesRuns) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::vector<float> same = Converse(*LoadTiny({.compute_dtype = compute}), {});
    for (const DType kv : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
      auto model = LoadTiny({.compute_dtype = compute, .kv_dtype = kv});
      EXPECT_EQ(model->kv_store().layout().dtype, kv);
      EXPECT_LT(MaxAbsDifference(Converse(*model, {}), same), 0.4)
          << DTypeName(compute) << " " << DTypeName(kv);
    }
  }
}

TEST(KvDTypeTest, ForksShareTheScalesOfTheirPrompt) {
  auto model = LoadTiny({.kv_dtype = DType::kI8});
  const std::vector<int32_t> tokens = TinyTokens(20, 6), next = TinyTokens(8, 7),
                             other = TinyTokens(8, 8);
  BlockTable original = model->NewSequence(32);
  model->Prefill(original, tokens, 512);
  BlockTable fork = original;
  fork.blocks[1] = model->NewSequence(16).blocks[0];  // the first block stays shared
  model->runner().CopyBlock(original.blocks[1], fork.blocks[1]);
  model->Decode(original, other);  // must not be seen by the fork
  BlockTable whole = model->NewSequence(32);
  model->Prefill(whole, tokens, 512);
  EXPECT_EQ(model->Decode(fork, next), model->Decode(whole, next));
}

}  // namespace
}  // namespace tokenbutler
