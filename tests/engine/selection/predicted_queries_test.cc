#include "engine/selection/predicted_queries.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "engine/kernels/linear.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/rope_append.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"

namespace tokenbutler {
namespace {

constexpr int kPosition = 37;

// A model's attention weights at random, q, k and v adjacent as the loader lays them.
class TinyModel {
 public:
  explicit TinyModel(DType dtype) : pool_(2) {
    config_.architecture = "qwen2";
    config_.num_layers = 6;
    config_.hidden_size = 48;
    config_.intermediate_size = 64;
    config_.num_heads = 6;
    config_.num_kv_heads = 2;
    config_.head_dim = 16;
    config_.max_position = 4096;
    config_.qkv_bias = true;
    config_.rms_norm_eps = 1e-5f;
    rope_ = std::make_unique<Rope>(*Rope::Create(config_.rope, 16, 4096));
    const int rows = (6 + 2 * 2) * 16;
    for (int l = 0; l < config_.num_layers; ++l) {
      norms_.push_back(RandomValues(48, 10 * l + 1, 1.0f));
      biases_.push_back(RandomValues(rows, 10 * l + 2, 1.0f));
      matrices_.push_back(
          PredictorMatrix::FromFloats(RandomValues(rows * 48, 10 * l + 3, 0.3f), dtype));
      LayerWeights layer;
      layer.input_norm = {.data = norms_[l].data(), .rank = 1, .shape = {48}};
      layer.q_proj = {
          .data = matrices_[l].bytes.data(), .dtype = dtype, .rank = 2, .shape = {6 * 16, 48}};
      layer.q_bias = {.data = biases_[l].data(), .rank = 1, .shape = {6 * 16}};
      weights_.layers.push_back(layer);
    }
    resources_.config = &config_;
    resources_.weights = &weights_;
    resources_.rope = rope_.get();
    resources_.layout = {
        .num_layers = 6, .num_kv_heads = 2, .head_dim = 16, .block_size = 64, .dtype = dtype};
  }

  // What the layer itself computes of a hidden state at kPosition. [num_heads, head_dim]
  std::vector<float> RealQuery(int layer, const std::vector<float>& residual) {
    std::vector<float> normed(48), qkv(10 * 16);
    std::vector<BF16> rounded(48);
    RmsNorm({.x = residual.data(),
             .weight = norms_[layer].data(),
             .out = normed.data(),
             .eps = config_.rms_norm_eps,
             .num_rows = 1,
             .hidden_size = 48});
    const bool is_bf16 = matrices_[layer].dtype == DType::kBF16;
    RoundToBf16(normed.data(), 48, rounded.data());
    Linear({.x = is_bf16 ? static_cast<const void*>(rounded.data()) : normed.data(),
            .x_dtype = matrices_[layer].dtype,
            .weight = matrices_[layer].bytes.data(),
            .weight_dtype = matrices_[layer].dtype,
            .bias = biases_[layer].data(),
            .y = qkv.data(),
            .num_rows = 1,
            .in_features = 48,
            .out_features = 160},
           pool_);
    std::vector<float> cos(8), sin(8);
    rope_->Rotation(kPosition, cos.data(), sin.data());
    std::vector<std::byte> block(resources_.layout.block_bytes());
    const RopeAppendParams::Row row = {cos.data(), sin.data(), block.data(), kPosition};
    RopeAppend({.rows = &row,
                .qkv = qkv.data(),
                .num_rows = 1,
                .num_heads = 6,
                .layout = resources_.layout,
                .layer = layer});
    qkv.resize(6 * 16);
    return qkv;
  }

  LayerContext Context(int layer) {
    LayerContext context;
    context.layout = &resources_.layout;
    context.layer = layer;
    context.context_len = kPosition + 1;
    context.pool = &pool_;
    return context;
  }

  ModelConfig config_;
  std::unique_ptr<Rope> rope_;
  ModelWeights weights_;
  SelectionResources resources_;

 private:
  ComputePool pool_;
  std::vector<std::vector<float>> norms_, biases_;
  std::vector<PredictorMatrix> matrices_;
};

std::vector<float> Values(const PredictorMatrix& matrix) {
  std::vector<float> values;
  for (size_t i = 0; i < matrix.bytes.size() / DTypeBytes(matrix.dtype); ++i) {
    values.push_back(matrix.dtype == DType::kBF16
                         ? ToFloat(reinterpret_cast<const BF16*>(matrix.bytes.data())[i])
                         : reinterpret_cast<const float*>(matrix.bytes.data())[i]);
  }
  return values;
}

// A predictor's correction of `layer`'s query at kPosition, written out in double.
std::vector<double> Correction(const TinyModel& model, const Predictor& predictor, int layer,
                               const std::vector<float>& residual) {
  const int rank = predictor.correction_rank, hidden = 48, outputs = 6 * 16, half = 8;
  double squares = 0;
  for (const float x : residual) squares += static_cast<double>(x) * x;
  const double scale = 1 / std::sqrt(squares / hidden + model.config_.rms_norm_eps);
  const float* norm = model.weights_.layers[layer].input_norm.as<float>();
  const std::vector<float> down = Values(predictor.correction_down);
  const std::vector<float> up = Values(predictor.correction_up);
  std::vector<double> middle(rank), sum(outputs), rotated(outputs);
  for (int r = 0; r < rank; ++r) {
    for (int e = 0; e < hidden; ++e) {
      middle[r] += down[(layer * rank + r) * hidden + e] * (residual[e] * scale * norm[e]);
    }
  }
  for (int o = 0; o < outputs; ++o) {
    for (int r = 0; r < rank; ++r) sum[o] += up[(layer * outputs + o) * rank + r] * middle[r];
  }
  std::vector<float> cosines(half), sines(half);
  model.rope_->Rotation(kPosition, cosines.data(), sines.data());
  for (int o = 0; o < outputs; ++o) {
    const int i = o % half;
    rotated[o] = o % 16 < half ? sum[o] * cosines[i] - sum[o + half] * sines[i]
                               : sum[o] * cosines[i] + sum[o - half] * sines[i];
  }
  return rotated;
}

class LookaheadQueryTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, LookaheadQueryTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

// A residual stream that does not change between two layers gives the consumer's query exactly.
TEST_P(LookaheadQueryTest, IsTheRealQueryWhenTheResidualDoesNotChange) {
  TinyModel model(GetParam());
  const auto lookahead = NewLookaheadQuery(model.resources_, 2, LayerPoint::kInput);
  const auto clone = lookahead->Clone();
  for (int layer = 0; layer < 6; layer += 2) {
    const std::vector<float> residual = RandomValues(48, 100 + layer, 2.0f);
    const auto [first, last] = lookahead->Consumers(layer);
    for (QueryPredictor* predictor : {lookahead.get(), clone.get()}) {
      predictor->Begin(model.Context(layer), residual.data(), nullptr);
      for (int l = first; l < last; ++l) {
        const float* query = predictor->Query(model.Context(layer), l);
        ASSERT_NE(query, nullptr);
        const std::vector<float> real = model.RealQuery(l, residual);
        for (size_t i = 0; i < real.size(); ++i) EXPECT_NEAR(query[i], real[i], 2e-5f);
      }
    }
  }
}

TEST_P(LookaheadQueryTest, AddsTheLearnedCorrectionBeforeRope) {
  TinyModel model(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Predictor predictor = RandomPredictor(PredictorKind::kLookahead,
                                          FingerprintOf(model.config_, *model.rope_), 8, 3, dtype);
    predictor.lookahead_point = LayerPoint::kAfterAttention;
    const auto lookahead = NewLookaheadQuery(model.resources_, predictor);
    EXPECT_EQ(lookahead->point(), LayerPoint::kAfterAttention);
    EXPECT_EQ(lookahead->Consumers(3), std::pair(4, 6));
    const auto clone = lookahead->Clone();
    const std::vector<float> residual = RandomValues(48, 103, 2.0f);
    for (QueryPredictor* query : {lookahead.get(), clone.get()}) {
      query->Begin(model.Context(3), residual.data(), nullptr);
      for (const int l : {4, 5}) {
        const float* got = query->Query(model.Context(3), l);
        ASSERT_NE(got, nullptr);
        const std::vector<float> real = model.RealQuery(l, residual);
        const std::vector<double> added = Correction(model, predictor, l, residual);
        double largest = 0;
        for (size_t i = 0; i < real.size(); ++i) {
          EXPECT_NEAR(got[i], real[i] + added[i], 1e-4 * (1 + std::abs(real[i] + added[i])));
          largest = std::max(largest, std::abs(added[i]));
        }
        EXPECT_GT(largest, 0.1);
      }
    }
  }
}

TEST(PredictedQueriesTest, EveryLayerButTheFirstHasOneProducerBeforeIt) {
  TinyModel model(DType::kF32);
  const Predictor predictor = RandomPredictor(PredictorKind::kTokenButler,
                                              FingerprintOf(model.config_, *model.rope_), 8, 4);
  for (int ahead = 1; ahead <= 7; ++ahead) {
    const auto lookahead = NewLookaheadQuery(model.resources_, ahead, LayerPoint::kInput);
    std::vector<int> producers(6, 0);
    for (int layer = 0; layer < 6; ++layer) {
      const auto [first, last] = lookahead->Consumers(layer);
      EXPECT_LE(last - first, ahead);
      for (int l = first; l < last; ++l) {
        EXPECT_GT(l, layer);
        ++producers[l];
      }
    }
    EXPECT_EQ(producers, (std::vector<int>{0, 1, 1, 1, 1, 1}));
  }
  const auto producer = NewProducerQuery(model.resources_, predictor);
  EXPECT_EQ(producer->point(), LayerPoint::kInput);
  for (const LayerPoint point : {LayerPoint::kInput, LayerPoint::kAfterAttention}) {
    EXPECT_EQ(NewLookaheadQuery(model.resources_, 1, point)->Clone()->point(), point);
  }
  EXPECT_EQ(producer->Consumers(0), std::pair(1, 5));
  EXPECT_EQ(producer->Consumers(4), std::pair(5, 6));
  EXPECT_EQ(producer->Consumers(5).first, producer->Consumers(5).second);
}

TEST(PredictedQueriesTest, WindowedLayersGetNone) {
  TinyModel model(DType::kF32);
  model.config_.sliding_window = {0, 8, 0, 8, 0, 0};
  const Predictor predictor =
      RandomPredictor(PredictorKind::kTokenButler, FingerprintOf(model.config_, *model.rope_));
  const std::vector<float> residual = RandomValues(48, 1, 1.0f);
  for (const auto& query : {NewLookaheadQuery(model.resources_, 2, LayerPoint::kInput).release(),
                            NewProducerQuery(model.resources_, predictor).release()}) {
    const std::unique_ptr<QueryPredictor> owned(query);
    owned->Begin(model.Context(0), residual.data(), residual.data());
    EXPECT_EQ(owned->Query(model.Context(0), 1), nullptr);
    EXPECT_NE(owned->Query(model.Context(0), 2), nullptr);
  }
}

// The published formula, written out in double: LayerNorm -> Linear -> SiLU -> Linear, slot by
// slot, head by head.
TEST(ProducerQueryTest, IsThePublishedFormula) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const PredictorInput input : {PredictorInput::kBeforeNorm, PredictorInput::kAfterNorm}) {
      TinyModel model(DType::kBF16);
      Predictor predictor = RandomPredictor(
          PredictorKind::kTokenButler, FingerprintOf(model.config_, *model.rope_), 8, 4, dtype);
      predictor.input = input;
      const auto query = NewProducerQuery(model.resources_, predictor);
      for (const auto& [producer, consumer] : {std::pair{0, 1}, {0, 2}, {0, 4}, {4, 5}}) {
        const std::vector<float> residual = RandomValues(48, 100 + producer, 2.0f);
        std::vector<BF16> normed(48);
        for (int i = 0; i < 48; ++i) normed[i] = ToBF16(0.5f * residual[i]);
        query->Begin(model.Context(producer), residual.data(), normed.data());
        const float* got = query->Query(model.Context(producer), consumer);

        const PredictorProducer& weights = predictor.producers[producer / 4];
        std::vector<double> x(48), hidden(24);
        double mean = 0, variance = 0;
        for (int i = 0; i < 48; ++i) {
          x[i] = input == PredictorInput::kBeforeNorm ? residual[i] : ToFloat(normed[i]);
          mean += x[i] / 48;
        }
        for (const double v : x) variance += (v - mean) * (v - mean) / 48;
        for (int i = 0; i < 48; ++i) {
          x[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * weights.norm_weight[i] +
                 weights.norm_bias[i];
        }
        const std::vector<float> first = Values(weights.input), second = Values(weights.output);
        for (int r = 0; r < 24; ++r) {
          double sum = 0;
          for (int i = 0; i < 48; ++i) sum += first[r * 48 + i] * x[i];
          hidden[r] = sum / (1 + std::exp(-sum));
        }
        const int slot = (consumer - 1) % 4;
        for (int head = 0; head < 6; ++head) {
          for (int c = 0; c < 8; ++c) {
            double sum = 0;
            for (int r = 0; r < 24; ++r) {
              sum += second[((slot * 6 + head) * 8 + c) * 24 + r] * hidden[r];
            }
            EXPECT_NEAR(got[head * 8 + c], sum, 1e-4 * (1 + std::abs(sum)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tokenbutler
