// Real models against transformers on the same de-quantised weights. The goldens are made by
// tools/golden/make_logit_goldens.py; a figure over the whole vocabulary takes its --compare.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/loaded_runner.h"
#include "tests/testing/model_cache.h"

namespace tokenbutler {
namespace {

struct RealModel {
  std::string file;
  std::string golden;
  std::string how_to_get_it;
};

const RealModel kSmolLm2 = {"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1",
                            "run scripts/setup"};
const RealModel kQwen = {"qwen2.5-coder-0.5b-instruct.gguf", "qwen2.5-coder-0.5b-instruct",
                         "run scripts/fetch-test-models"};

// Log-probabilities of some token ids at each position.
struct Golden {
  std::vector<int32_t> prompt;            // [positions]
  std::vector<std::vector<int32_t>> ids;  // [positions, ids], the most likely first
  std::vector<float> log_probs;           // [positions, ids]
  int greedy_prompt_tokens = 0;
  std::vector<int32_t> greedy;  // after that many tokens of the prompt
};

Golden ReadGolden(const std::string& name) {
  const std::string base = std::string(TOKENBUTLER_TEST_DATA) + "/goldens/" + name;
  std::ifstream text(base + ".json");
  const nlohmann::json json = nlohmann::json::parse(text);
  Golden golden{.prompt = json["prompt"],
                .ids = json["ids"],
                .log_probs = {},
                .greedy_prompt_tokens = json["greedy_prompt_tokens"],
                .greedy = json["greedy"]};
  golden.log_probs.resize(golden.ids.size() * golden.ids[0].size());
  std::ifstream file(base + ".f32", std::ios::binary);
  file.read(reinterpret_cast<char*>(golden.log_probs.data()),
            golden.log_probs.size() * sizeof(float));
  EXPECT_TRUE(file.good());
  return golden;
}

class RealModelsTest : public ::testing::TestWithParam<RealModel> {
 protected:
  void SetUp() override {
    const std::string path = CachedModelPath(GetParam().file);
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << path << " is not there: " << GetParam().how_to_get_it << ".";
    }
    golden_ = ReadGolden(GetParam().golden);
  }

  std::unique_ptr<LoadedRunner> Load(DType dtype) {
    auto loaded = LoadedRunner::Load(CachedModelPath(GetParam().file),
                                     {.compute_dtype = dtype, .block_size = 128});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }

  // Largest |difference| to the golden log-probabilities. `logits` [positions, vocab_size].
  double WorstDifference(absl::Span<const float> logits) const {
    const size_t vocab = logits.size() / golden_.ids.size();
    const size_t num_ids = golden_.ids[0].size();
    double worst = 0;
    for (size_t p = 0; p < golden_.ids.size(); ++p) {
      const std::vector<double> log_probs = LogSoftmax(logits.subspan(p * vocab, vocab));
      for (size_t i = 0; i < num_ids; ++i) {
        const double difference =
            std::abs(log_probs[golden_.ids[p][i]] - golden_.log_probs[p * num_ids + i]);
        worst = std::max(worst, difference);
      }
    }
    return worst;
  }

  double ShareOfSameArgMax(absl::Span<const float> logits) const {
    const size_t vocab = logits.size() / golden_.ids.size();
    int same = 0;
    for (size_t p = 0; p < golden_.ids.size(); ++p) {
      same += ArgMax(logits.subspan(p * vocab, vocab)) == golden_.ids[p][0];
    }
    return static_cast<double>(same) / golden_.ids.size();
  }

  std::vector<int32_t> GreedyContinuation(LoadedRunner& model) const {
    BlockTable sequence = model.NewSequence(static_cast<int>(golden_.prompt.size()));
    const auto prompt = absl::MakeSpan(golden_.prompt).first(golden_.greedy_prompt_tokens);
    const std::vector<float> logits = model.Prefill(sequence, prompt, 512);
    return model.Greedy(sequence, absl::MakeSpan(logits).last(model.vocab_size()),
                        static_cast<int>(golden_.greedy.size()));
  }

  Golden golden_;
};

TEST_P(RealModelsTest, Float32PrefillEqualsTransformers) {
  auto model = Load(DType::kF32);
  for (const int chunk_tokens : {512, 200}) {
    BlockTable sequence = model->NewSequence(static_cast<int>(golden_.prompt.size()));
    const double worst = WorstDifference(model->Prefill(sequence, golden_.prompt, chunk_tokens));
    EXPECT_LT(worst, 2e-3);
    std::printf("max |difference of log-probabilities|, chunks of %d: %.2e\n", chunk_tokens, worst);
  }
}

TEST_P(RealModelsTest, Float32DecodeEqualsTransformers) {
  auto model = Load(DType::kF32);
  BlockTable sequence = model->NewSequence(static_cast<int>(golden_.prompt.size()));
  const double worst = WorstDifference(model->Decode(sequence, golden_.prompt));
  EXPECT_LT(worst, 2e-3);
  std::printf("max |difference of log-probabilities|, decode: %.2e\n", worst);
  EXPECT_EQ(GreedyContinuation(*model), golden_.greedy);
}

TEST_P(RealModelsTest, Bf16HasTheSameArgMax) {
  auto model = Load(DType::kBF16);
  BlockTable prefilled = model->NewSequence(static_cast<int>(golden_.prompt.size()));
  const double prefill = ShareOfSameArgMax(model->Prefill(prefilled, golden_.prompt, 512));
  BlockTable decoded = model->NewSequence(static_cast<int>(golden_.prompt.size()));
  const double decode = ShareOfSameArgMax(model->Decode(decoded, golden_.prompt));
  std::printf("same argmax: prefill %.2f %%, decode %.2f %%\n", 100 * prefill, 100 * decode);
  EXPECT_GT(prefill, 0.98);
  EXPECT_GT(decode, 0.98);
}

// The running text above has no control tokens; a chat prompt is full of them. (Its best next
// tokens, "The" and "L", are 0.08 apart in float32: their order says nothing, the divergence does.)
TEST_P(RealModelsTest, Bf16PrefillOfAChatPromptAgreesWithFloat32) {
  if (GetParam().file != kSmolLm2.file) GTEST_SKIP() << "the prompt is in SmolLM2's tokens";
  // <|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging
  // Face<|im_end|>
  // <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n
  const std::vector<int32_t> prompt = {
      1,   9690, 198, 2683, 359,   253,  5356, 5646, 11173, 3365, 3511, 308,  34519,
      28,  7018, 411, 407,  19712, 8182, 2,    198,  1,     4093, 198,  1780, 314,
      260, 3575, 282, 4649, 47,    2,    198,  1,    520,   9531, 198};
  const int length = static_cast<int>(prompt.size());
  auto reference = Load(DType::kF32);
  BlockTable decoded = reference->NewSequence(length);
  const std::vector<float> expected = reference->Decode(decoded, prompt);
  auto model = Load(DType::kBF16);
  BlockTable prefilled = model->NewSequence(length);
  const std::vector<float> logits = model->Prefill(prefilled, prompt, 512);
  const size_t vocab = model->vocab_size();
  double worst = 0;
  for (int p = 0; p < length; ++p) {
    const std::vector<double> got =
        LogSoftmax(absl::MakeConstSpan(logits).subspan(p * vocab, vocab));
    const std::vector<double> want =
        LogSoftmax(absl::MakeConstSpan(expected).subspan(p * vocab, vocab));
    double divergence = 0;  // KL(want || got)
    for (size_t i = 0; i < vocab; ++i) divergence += std::exp(want[i]) * (want[i] - got[i]);
    worst = std::max(worst, divergence);
  }
  EXPECT_LT(worst, 0.05);
  std::printf("worst KL(float32 || bf16) over the chat prompt: %.4f\n", worst);
}

// The same sequence beside 15 others that start at other depths: the same bits at every step.
TEST_P(RealModelsTest, DecodeIsTheSameAloneAndBeside15Others) {
  auto model = Load(DType::kBF16);
  constexpr int kNumSteps = 24, kNumRows = 16, kMine = 11;
  BlockTable alone = model->NewSequence(128);
  const auto mine = absl::MakeSpan(golden_.prompt).first(64 + kNumSteps);
  model->Prefill(alone, mine.first(64), 512);
  const std::vector<float> expected = model->Decode(alone, mine.subspan(64));

  std::vector<BlockTable> tables;
  std::vector<absl::Span<const int32_t>> tokens;
  for (int i = 0; i < kNumRows; ++i) {
    tables.push_back(model->NewSequence(128));
    tokens.emplace_back(i == kMine ? mine : absl::MakeSpan(golden_.prompt).subspan(10 * i, 100));
    const int depth = i == kMine ? 64 : 4 * i + 1;
    model->Prefill(tables[i], tokens[i].first(depth), 512);
  }
  const size_t vocab = model->vocab_size();
  for (int step = 0; step < kNumSteps; ++step) {
    StepPlan plan;
    for (int i = 0; i < kNumRows; ++i) {
      plan.decode.push_back({.block_table = &tables[i],
                             .token_ids = tokens[i].subspan(tables[i].num_tokens, 1),
                             .start_position = tables[i].num_tokens});
    }
    ASSERT_TRUE(model->runner().Run(plan).ok());
    for (BlockTable& table : tables) ++table.num_tokens;
    ASSERT_EQ(model->runner().decode_logits(kMine),
              absl::MakeConstSpan(expected).subspan(step * vocab, vocab))
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(SmolLm2, RealModelsTest, ::testing::Values(kSmolLm2));
INSTANTIATE_TEST_SUITE_P(Qwen25Coder, RealModelsTest, ::testing::Values(kQwen));

}  // namespace
}  // namespace tokenbutler
