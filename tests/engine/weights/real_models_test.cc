// Loads the real model files. The SmolLM2 file is fetched by scripts/setup; the Qwen file is
// optional.

#include <cmath>
#include <filesystem>
#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_cache.h"

namespace tokenbutler {
namespace {

using testing::Each;
using testing::ElementsAre;

// The checks that hold for every model of ours.
void ExpectSound(const LoadedModel& model) {
  const ModelConfig& c = model.config;
  ASSERT_EQ(model.weights.layers.size(), static_cast<size_t>(c.num_layers));
  double sum = 0;
  for (const LayerWeights& layer : model.weights.layers) {
    ASSERT_EQ(layer.q_proj.shape[0], c.num_heads * c.head_dim);
    ASSERT_EQ(layer.down_proj.shape[1], c.intermediate_size);
    for (int i = 0; i < c.hidden_size; ++i) sum += layer.input_norm.as<float>()[i];
  }
  EXPECT_TRUE(std::isfinite(sum));
  EXPECT_NE(sum, 0.0);
  ASSERT_TRUE(std::holds_alternative<TokenizerSpec>(model.tokenizer));
  const auto tokenizer = Tokenizer::Create(std::get<TokenizerSpec>(model.tokenizer));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "Hello, world!";
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text, {}), true), text);
  EXPECT_TRUE(model.chat_template.has_value());
}

TEST(RealModelsTest, SmolLm2) {
  const std::string path = CachedModelPath("SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing: run scripts/setup";
  const absl::StatusOr<LoadedModel> model = LoadModel(path, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& c = model->config;
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.num_layers, 30);
  EXPECT_EQ(c.hidden_size, 576);
  EXPECT_EQ(c.intermediate_size, 1536);
  EXPECT_EQ(c.num_heads, 9);
  EXPECT_EQ(c.num_kv_heads, 3);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab_size, 49152);
  EXPECT_EQ(c.max_position, 8192);
  EXPECT_EQ(c.rope.theta, 100000.0f);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_THAT(c.sliding_window, Each(0));
  EXPECT_THAT(model->generation.eos_ids, ElementsAre(2, 0));
  EXPECT_EQ(model->eos_token, "<|im_end|>");
  ExpectSound(*model);
}

TEST(RealModelsTest, Qwen25Coder) {
  const std::string path = CachedModelPath("qwen2.5-coder-0.5b-instruct.gguf");
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is missing; scripts/fetch-test-models fetches it";
  }
  const absl::StatusOr<LoadedModel> model = LoadModel(path, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& c = model->config;
  EXPECT_EQ(c.architecture, "qwen2");
  EXPECT_EQ(c.num_layers, 24);
  EXPECT_EQ(c.hidden_size, 896);
  EXPECT_EQ(c.num_heads, 14);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.max_position, 32768);
  EXPECT_EQ(c.rope.theta, 1e6f);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_THAT(model->generation.eos_ids, ElementsAre(151645, 151643));
  EXPECT_FALSE(model->weights.layers[0].q_bias.empty());
  ExpectSound(*model);
}

}  // namespace
}  // namespace tokenbutler
