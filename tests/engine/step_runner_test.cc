#include "engine/step_runner.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_conversation.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

std::vector<float> Copy(absl::Span<const float> values) { return {values.begin(), values.end()}; }

class StepRunnerDTypeTest : public ::testing::TestWithParam<DType> {};

// The scheduler may put anything beside a sequence; its logits must not change by a bit.
TEST_P(StepRunnerDTypeTest, DecodeLogitsAreTheSameAloneAndBeside15Others) {
  auto model = LoadTiny("qwen2-yarn", {.compute_dtype = GetParam(), .num_blocks = 256});
  const int kNumSteps = 40;
  const std::vector<int32_t> tokens = TinyTokens(kNumSteps, 1);
  BlockTable alone = model->NewSequence(kNumSteps);
  const std::vector<float> expected = model->Decode(alone, tokens);

  std::vector<BlockTable> tables;
  std::vector<std::vector<int32_t>> others;
  for (int i = 0; i < 16; ++i) {
    tables.push_back(model->NewSequence(2 * kNumSteps));
    others.push_back(i == 5 ? tokens : TinyTokens(2 * kNumSteps, 100 + i));
    // Neighbours are at depths of their own.
    if (i != 5) model->Prefill(tables[i], absl::MakeSpan(others[i]).first(2 * i + 1), 512);
  }
  for (int step = 0; step < kNumSteps; ++step) {
    StepPlan plan;
    for (int i = 0; i < 16; ++i) {
      const size_t at = tables[i].num_tokens;
      plan.decode.push_back({.block_table = &tables[i],
                             .token_ids = absl::MakeSpan(others[i]).subspan(at, 1),
                             .start_position = tables[i].num_tokens});
    }
    ASSERT_TRUE(model->runner().Run(plan).ok());
    for (BlockTable& table : tables) ++table.num_tokens;
    const int vocab = model->vocab_size();
    ASSERT_EQ(Copy(model->runner().decode_logits(5)),
              Copy(absl::MakeSpan(expected).subspan(size_t(step) * vocab, vocab)))
        << "step " << step;
  }
}

// Decode items and prefill chunks of one step do not touch each other.
TEST_P(StepRunnerDTypeTest, MixedStepEqualsSeparateSteps) {
  auto model = LoadTiny("llama-llama3", {.compute_dtype = GetParam()});
  const std::vector<int32_t> a = TinyTokens(30, 1), b = TinyTokens(30, 2), c = TinyTokens(20, 3);
  BlockTable a1 = model->NewSequence(31), b1 = model->NewSequence(30), c1 = model->NewSequence(20);
  model->Prefill(a1, a, 16);
  const std::vector<int32_t> next = {7};
  const std::vector<float> decode_alone = model->Decode(a1, next);
  const std::vector<float> b_alone = model->Prefill(b1, b, 512);
  const std::vector<float> c_alone = model->Prefill(c1, c, 512);

  BlockTable a2 = model->NewSequence(31), b2 = model->NewSequence(30), c2 = model->NewSequence(20);
  model->Prefill(a2, a, 16);
  StepPlan plan;
  plan.decode.push_back({.block_table = &a2, .token_ids = next, .start_position = 30});
  plan.prefill_chunks.push_back({.block_table = &b2, .token_ids = b, .logits = LogitsWanted::kAll});
  plan.prefill_chunks.push_back(
      {.block_table = &c2, .token_ids = c, .logits = LogitsWanted::kLast});
  ASSERT_TRUE(model->runner().Run(plan).ok());
  EXPECT_EQ(Copy(model->runner().decode_logits(0)), decode_alone);
  EXPECT_EQ(Copy(model->runner().prefill_logits(0)), b_alone);
  EXPECT_EQ(Copy(model->runner().prefill_logits(1)),
            Copy(absl::MakeSpan(c_alone).last(model->vocab_size())));
}

// Windows much shorter than the context, over blocks of keys that some rows do not see at all
// (a fully masked row of LibTorch's attention has lse 0, not -inf).
TEST_P(StepRunnerDTypeTest, SlidingWindowIsExactFarBeyondIt) {
  // bf16 rounds differently in the two ways; a wrong window differs by several units.
  const double tolerance = GetParam() == DType::kF32 ? 1e-4 : 0.4;
  auto model = LoadTiny("mistral-none", {.compute_dtype = GetParam(), .num_blocks = 600});
  const std::vector<int32_t> tokens = TinyTokens(1500, 9);
  BlockTable decoded = model->NewSequence(1500);
  const std::vector<float> expected = model->Decode(decoded, tokens);
  for (const int chunk_tokens : {1500, 512, 19, 20, 21}) {
    BlockTable sequence = model->NewSequence(1500);
    const std::vector<float> logits = model->Prefill(sequence, tokens, chunk_tokens);
    EXPECT_LT(MaxAbsDifference(logits, expected), tolerance) << "chunks of " << chunk_tokens;
  }
}

// What lies before the window must not matter, and what lies in it must.
TEST_P(StepRunnerDTypeTest, SlidingWindowForgets) {
  auto model = LoadTiny("mistral-none", {.compute_dtype = GetParam()});
  std::vector<int32_t> tokens = TinyTokens(60, 4);
  const auto last_logits = [&] {
    BlockTable sequence = model->NewSequence(60);
    const std::vector<float> logits = model->Prefill(sequence, tokens, 512);
    return Copy(absl::MakeConstSpan(logits).last(model->vocab_size()));
  };
  const std::vector<float> before = last_logits();
  // Two layers of window 20 reach back 2 * 19 tokens from position 59.
  tokens[59 - 39] = (tokens[59 - 39] + 1) % 96;
  EXPECT_EQ(last_logits(), before);
  tokens[59 - 38] = (tokens[59 - 38] + 1) % 96;
  EXPECT_NE(last_logits(), before);
}

TEST_P(StepRunnerDTypeTest, LogitsAreThoseAskedFor) {
  auto model = LoadTiny("llama-none", {.compute_dtype = GetParam()});
  const std::vector<int32_t> tokens = TinyTokens(10, 5), one = {3};
  BlockTable a = model->NewSequence(16), b = model->NewSequence(16), c = model->NewSequence(16);
  BlockTable d = model->NewSequence(16), e = model->NewSequence(16);
  StepPlan plan;
  plan.decode.push_back({.block_table = &d, .token_ids = one, .logits = LogitsWanted::kNone});
  plan.decode.push_back({.block_table = &e, .token_ids = one});
  plan.prefill_chunks.push_back(
      {.block_table = &a, .token_ids = tokens, .logits = LogitsWanted::kNone});
  plan.prefill_chunks.push_back(
      {.block_table = &b, .token_ids = tokens, .logits = LogitsWanted::kAll});
  plan.prefill_chunks.push_back(
      {.block_table = &c, .token_ids = tokens, .logits = LogitsWanted::kLast});
  ASSERT_TRUE(model->runner().Run(plan).ok());
  const StepRunner& runner = model->runner();
  const size_t vocab = model->vocab_size();
  EXPECT_EQ(runner.decode_logits(0).size(), 0);
  EXPECT_EQ(runner.decode_logits(1).size(), vocab);
  EXPECT_EQ(runner.prefill_logits(0).size(), 0);
  EXPECT_EQ(runner.prefill_logits(1).size(), 10 * vocab);
  EXPECT_EQ(Copy(runner.prefill_logits(2)), Copy(runner.prefill_logits(1).last(vocab)));
}

TEST_P(StepRunnerDTypeTest, ForkedBlockContinuesLikeTheOriginal) {
  auto model = LoadTiny("llama-none", {.compute_dtype = GetParam()});
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

INSTANTIATE_TEST_SUITE_P(All, StepRunnerDTypeTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const ::testing::TestParamInfo<DType>& info) {
                           return std::string(DTypeName(info.param));
                         });

TEST(StepRunnerTest, RefusesItemsOutOfBounds) {
  auto model = LoadTiny("llama-none", {});
  BlockTable table = model->NewSequence(16);
  const auto message = [&](std::vector<int32_t> ids, int start, bool decode) {
    StepPlan plan;
    const StepItem item{.block_table = &table, .token_ids = ids, .start_position = start};
    (decode ? plan.decode : plan.prefill_chunks).push_back(item);
    const absl::Status status = model->runner().Run(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({96}, 0, true), HasSubstr("token id is 96, must be in [0, 96)"));
  EXPECT_THAT(message({-1}, 0, false), HasSubstr("token id is -1"));
  EXPECT_THAT(message({1}, 16, true), HasSubstr("positions are 16 to 16, must be in [0, 16)"));
  EXPECT_THAT(message({1, 2, 3}, 14, false), HasSubstr("positions are 14 to 16"));
  EXPECT_THAT(message({1}, -1, false), HasSubstr("positions are -1"));
  EXPECT_THAT(message({}, 0, false), HasSubstr("no tokens"));
  EXPECT_THAT(message({1, 2}, 0, true), HasSubstr("decode item has 2 tokens"));
}

// Creates a runner from the tiny Llama after `damage`; the message of what is refused.
std::string CreateError(const std::function<void(LoadedModel&, KvLayout&)>& damage) {
  LoadOptions options;
  options.compute_dtype = DType::kF32;
  LoadedModel model = LoadModel(TinyModelPath("llama-none"), options).value();
  KvLayout layout = KvLayoutFor(model.config, DType::kF32);
  layout.block_size = 16;
  damage(model, layout);
  auto kv_store = KvStore::Create(layout, {.capacity_bytes = 1 << 20}).value();
  ComputePool pool(1);
  const auto runner =
      StepRunner::Create(model.config, std::move(model.weights), kv_store.get(), &pool);
  return runner.ok() ? "" : std::string(runner.status().message());
}

TEST(StepRunnerTest, RefusesModelsThatDoNotFitTogether) {
  EXPECT_EQ(CreateError([](LoadedModel&, KvLayout&) {}), "");
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) {
                m.config.num_layers = 3;
                m.config.sliding_window.clear();
              }),
              HasSubstr("2 layers, must have num_layers = 3"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) { m.config.num_kv_heads = 3; }),
              HasSubstr("num_heads is 4, must be a multiple of num_kv_heads (3)"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) { m.config.vocab_size = 97; }),
              HasSubstr("token_embedding"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) { m.config.rope.theta = 0; }),
              HasSubstr("rope_theta"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) { m.weights.layers[1].up_proj = {}; }),
              HasSubstr("layer 1: up_proj is missing"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) {
                m.weights.layers[0].q_proj.dtype = DType::kBF16;
              }),
              HasSubstr("layer 0: q_proj is bfloat16"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) {
                std::swap(m.weights.layers[0].gate_proj, m.weights.layers[0].up_proj);
              }),
              HasSubstr("gate, up are not adjacent"));
  EXPECT_THAT(CreateError([](LoadedModel&, KvLayout& layout) { layout.head_dim = 8; }),
              HasSubstr("2 layers x 2 KV heads x 8, must have 2 x 2 x 16"));
  EXPECT_THAT(CreateError([](LoadedModel& m, KvLayout&) { m.config.sliding_window = {4}; }),
              HasSubstr("sliding_window has 1 entries"));
}

TEST(StepRunnerTest, OptionsAreChecked) {
  StepRunnerOptions options;
  EXPECT_TRUE(options.Validate().ok());
  options.max_num_seqs = 0;
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("max_num_seqs is 0"));
  options = {.prefill_chunk_tokens = 0};
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("prefill_chunk_tokens is 0"));
}

}  // namespace
}  // namespace tokenbutler
