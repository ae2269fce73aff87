// Loads every tiny model of tools/golden/make_tiny_models.py and looks at what came out.

#include <cstring>
#include <string>
#include <vector>

#include "engine/weights/loader.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

constexpr int kHidden = 32, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kVocab = 96, kLayers = 2;
constexpr int kWindow = 20;

std::string PathOf(const std::string& name) {
  return std::string(TOKENBUTLER_TEST_DATA "/tiny_models/") + name;
}

LoadedModel Load(const std::string& name, DType dtype = DType::kF32, int num_threads = 2) {
  LoadOptions options;
  options.compute_dtype = dtype;
  options.num_threads = num_threads;
  absl::StatusOr<LoadedModel> model = LoadModel(PathOf(name), options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : LoadedModel{};
}

void ExpectSameMatrix(const TensorView& a, const TensorView& b, const std::string& what) {
  ASSERT_EQ(a.rank, b.rank) << what;
  ASSERT_EQ(a.shape, b.shape) << what;
  ASSERT_EQ(a.dtype, b.dtype) << what;
  if (a.empty()) return;
  EXPECT_EQ(std::memcmp(a.data, b.data, a.num_bytes()), 0) << what;
}

void ExpectSameWeights(const ModelWeights& a, const ModelWeights& b) {
  ExpectSameMatrix(a.token_embedding, b.token_embedding, "token_embedding");
  ExpectSameMatrix(a.final_norm, b.final_norm, "final_norm");
  ExpectSameMatrix(a.lm_head, b.lm_head, "lm_head");
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const LayerWeights &x = a.layers[i], &y = b.layers[i];
    ExpectSameMatrix(x.input_norm, y.input_norm, "input_norm");
    ExpectSameMatrix(x.q_proj, y.q_proj, "q_proj");
    ExpectSameMatrix(x.k_proj, y.k_proj, "k_proj");
    ExpectSameMatrix(x.v_proj, y.v_proj, "v_proj");
    ExpectSameMatrix(x.q_bias, y.q_bias, "q_bias");
    ExpectSameMatrix(x.k_bias, y.k_bias, "k_bias");
    ExpectSameMatrix(x.v_bias, y.v_bias, "v_bias");
    ExpectSameMatrix(x.o_proj, y.o_proj, "o_proj");
    ExpectSameMatrix(x.post_attention_norm, y.post_attention_norm, "post_attention_norm");
    ExpectSameMatrix(x.gate_proj, y.gate_proj, "gate_proj");
    ExpectSameMatrix(x.up_proj, y.up_proj, "up_proj");
    ExpectSameMatrix(x.down_proj, y.down_proj, "down_proj");
  }
}

// Bytes right behind a matrix or vector.
const void* EndOf(const TensorView& view) {
  return static_cast<const std::byte*>(view.data) + view.num_bytes();
}

class TinyModelTest : public testing::TestWithParam<const char*> {};

TEST_P(TinyModelTest, LoadsWithTheRightShapes) {
  const std::string name = GetParam();
  const LoadedModel model = Load(name);
  const ModelConfig& config = model.config;
  EXPECT_EQ(config.num_layers, kLayers);
  EXPECT_EQ(config.hidden_size, kHidden);
  EXPECT_EQ(config.num_heads, kHeads);
  EXPECT_EQ(config.num_kv_heads, kKvHeads);
  EXPECT_EQ(config.head_dim, kHeadDim);
  EXPECT_EQ(config.vocab_size, kVocab);
  EXPECT_EQ(config.max_position, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.rope.theta, 10000.0f);
  EXPECT_EQ(config.qkv_bias, config.architecture == "qwen2" || name == "llama-biases");
  ASSERT_EQ(model.weights.layers.size(), static_cast<size_t>(kLayers));
  for (const LayerWeights& layer : model.weights.layers) {
    EXPECT_EQ(layer.k_proj.data, EndOf(layer.q_proj));
    EXPECT_EQ(layer.v_proj.data, EndOf(layer.k_proj));
    EXPECT_EQ(layer.up_proj.data, EndOf(layer.gate_proj));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.q_proj.data) % 64, 0u);
    EXPECT_EQ(layer.q_bias.empty(), !config.qkv_bias);
  }
  EXPECT_EQ(config.tie_word_embeddings,
            model.weights.lm_head.data == model.weights.token_embedding.data);
}

TEST_P(TinyModelTest, ThreadsDoNotChangeTheBytes) {
  const LoadedModel one = Load(GetParam(), DType::kBF16, 1);
  const LoadedModel four = Load(GetParam(), DType::kBF16, 4);
  ExpectSameWeights(one.weights, four.weights);
}

INSTANTIATE_TEST_SUITE_P(
    All, TinyModelTest,
    testing::Values("llama-none", "llama-linear", "llama-llama3", "llama-yarn", "llama-biases",
                    "qwen2-none", "qwen2-linear", "qwen2-llama3", "qwen2-yarn", "qwen2-sharded",
                    "qwen2-window", "mistral-none", "mistral-linear", "mistral-llama3",
                    "mistral-yarn", "llama-none-F32.gguf", "llama-none-Q4_0.gguf",
                    "llama-none-Q4_K.gguf", "llama-linear-F16.gguf", "llama-llama3-BF16.gguf",
                    "llama-llama3-Q8_0.gguf", "llama-yarn-Q5_1.gguf", "qwen2-none-Q8_0.gguf",
                    "qwen2-none-Q6_K.gguf", "qwen2-linear-BF16.gguf", "qwen2-llama3-F16.gguf",
                    "qwen2-yarn-F16.gguf", "mistral-none-Q4_1.gguf", "mistral-linear-Q5_0.gguf",
                    "mistral-llama3-Q8_0.gguf", "mistral-yarn-BF16.gguf"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

// The tiny weights are exact in bf16, fp16 and float32, so the formats must agree bit for bit;
// for llama only once GGUF's rotary row order is undone.
TEST(TinyModelsTest, GgufAndFolderHoldTheSameWeights) {
  ExpectSameWeights(Load("llama-none").weights, Load("llama-none-F32.gguf").weights);
  ExpectSameWeights(Load("llama-linear").weights, Load("llama-linear-F16.gguf").weights);
  ExpectSameWeights(Load("llama-llama3").weights, Load("llama-llama3-BF16.gguf").weights);
  ExpectSameWeights(Load("qwen2-linear").weights, Load("qwen2-linear-BF16.gguf").weights);
  ExpectSameWeights(Load("qwen2-yarn").weights, Load("qwen2-yarn-F16.gguf").weights);
  ExpectSameWeights(Load("qwen2-none").weights, Load("qwen2-sharded").weights);
}

TEST(TinyModelsTest, Bf16HoldsTheRoundedFloat32) {
  const LoadedModel f32 = Load("llama-none-Q4_K.gguf"),
                    bf16 = Load("llama-none-Q4_K.gguf", DType::kBF16);
  const TensorView &a = f32.weights.layers[1].down_proj, &b = bf16.weights.layers[1].down_proj;
  ASSERT_EQ(b.dtype, DType::kBF16);
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    ASSERT_EQ(b.as<BF16>()[i].bits, ToBF16(a.as<float>()[i]).bits) << i;
  }
  EXPECT_EQ(bf16.weights.layers[1].input_norm.dtype, DType::kF32);
}

TEST(TinyModelsTest, ReadsEveryKindOfRopeScaling) {
  using Scaling = RopeConfig::Scaling;
  for (const char* name :
       {"llama-linear", "llama-linear-F16.gguf", "mistral-linear", "mistral-linear-Q5_0.gguf"}) {
    const RopeConfig rope = Load(name).config.rope;
    EXPECT_EQ(rope.scaling, Scaling::kLinear) << name;
    EXPECT_EQ(rope.factor, 3.0f) << name;
  }
  for (const char* name :
       {"qwen2-yarn", "qwen2-yarn-F16.gguf", "llama-yarn-Q5_1.gguf", "mistral-yarn-BF16.gguf"}) {
    const RopeConfig rope = Load(name).config.rope;
    EXPECT_EQ(rope.scaling, Scaling::kYarn) << name;
    EXPECT_EQ(rope.factor, 4.0f) << name;
    EXPECT_EQ(rope.original_max_position, 32) << name;
    EXPECT_FALSE(rope.attention_factor.has_value()) << name;
  }
  const RopeConfig llama3 = Load("llama-llama3").config.rope;
  EXPECT_EQ(llama3.scaling, Scaling::kLlama3);
  EXPECT_EQ(llama3.factor, 8.0f);
  EXPECT_EQ(llama3.original_max_position, 32);
  const RopeConfig factors = Load("llama-llama3-Q8_0.gguf").config.rope;
  EXPECT_EQ(factors.scaling, Scaling::kNone);
  ASSERT_EQ(factors.frequency_factors.size(), static_cast<size_t>(kHeadDim / 2));
  EXPECT_EQ(factors.frequency_factors.front(), 1.0f);
  EXPECT_EQ(factors.frequency_factors.back(), 8.0f);
}

TEST(TinyModelsTest, ReadsSlidingWindows) {
  const std::vector<int> full = {0, 0}, all = {kWindow, kWindow}, second = {0, kWindow};
  EXPECT_EQ(Load("mistral-none").config.sliding_window, all);
  EXPECT_EQ(Load("qwen2-window").config.sliding_window, second);
  EXPECT_EQ(Load("qwen2-none").config.sliding_window, full);
  EXPECT_EQ(Load("llama-none").config.sliding_window, full);
  EXPECT_EQ(Load("mistral-none-Q4_1.gguf").config.sliding_window, full);
}

TEST(TinyModelsTest, ReadsEveryBias) {
  const LoadedModel model = Load("llama-biases");
  EXPECT_TRUE(model.config.o_bias);
  EXPECT_TRUE(model.config.mlp_bias);
  const LayerWeights& layer = model.weights.layers[0];
  EXPECT_EQ(layer.o_bias.shape[0], kHidden);
  EXPECT_EQ(layer.gate_bias.shape[0], 64);
  EXPECT_EQ(layer.up_bias.data, EndOf(layer.gate_bias));
  EXPECT_EQ(layer.down_bias.shape[0], kHidden);
}

TEST(TinyModelsTest, ReportsProgressToTheEnd) {
  LoadOptions options;
  int64_t last = 0, total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  ASSERT_TRUE(LoadModel(PathOf("qwen2-none"), options).ok());
  EXPECT_GT(total, 0);
  EXPECT_EQ(last, total);
}

}  // namespace
}  // namespace tokenbutler
