#include "engine/selection/predicted_queries.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/kernels/linear.h"
#include "engine/kernels/rms_norm.h"
#include "engine/selection/kv_rows.h"

namespace tokenbutler {
namespace {

// Layers that producer `layer` serves when every n-th one is a producer.
std::pair<int, int> ConsumersOf(int layer, int n, int num_layers) {
  if (layer % n != 0) return {layer, layer};
  return {layer + 1, std::min(layer + n, num_layers - 1) + 1};
}

// y[0, num_rows) = rows [first_row, first_row + num_rows) of the matrix times x.
void Multiply(const PredictorMatrix& matrix, int64_t first_row, int num_rows,
              const std::vector<float>& x, float* y, ComputePool& pool) {
  const size_t row_bytes = x.size() * DTypeBytes(matrix.dtype);
  Linear({.x = x.data(),
          .x_dtype = DType::kF32,
          .weight = matrix.bytes.data() + static_cast<size_t>(first_row) * row_bytes,
          .weight_dtype = matrix.dtype,
          .y = y,
          .num_rows = 1,
          .in_features = static_cast<int>(x.size()),
          .out_features = num_rows},
         pool);
}

class LookaheadQuery : public QueryPredictor {
 public:
  // `correction`: a predictor with correction_rank > 0, or null.
  LookaheadQuery(const SelectionResources& resources, int layers_ahead, LayerPoint point,
                 const Predictor* correction)
      : config_(*resources.config),
        weights_(*resources.weights),
        rope_(*resources.rope),
        layers_ahead_(layers_ahead),
        point_(point),
        correction_(correction),
        rotation_(static_cast<size_t>(config_.head_dim)),
        normed_(static_cast<size_t>(config_.hidden_size)),
        rounded_(static_cast<size_t>(config_.hidden_size)),
        query_(static_cast<size_t>(config_.num_heads) * config_.head_dim) {
    if (correction_ == nullptr) return;
    down_.resize(static_cast<size_t>(correction_->correction_rank));
    added_.resize(query_.size());
  }

  std::unique_ptr<QueryPredictor> Clone() const override {
    return std::make_unique<LookaheadQuery>(*this);
  }
  std::pair<int, int> Consumers(int layer) const override {
    return ConsumersOf(layer, layers_ahead_, config_.num_layers);
  }
  LayerPoint point() const override { return point_; }

  void Begin(const LayerContext& producer, const float* residual, const void*) override {
    residual_ = residual;
    const int half = config_.head_dim / 2;
    rope_.Rotation(producer.context_len - 1, rotation_.data(), rotation_.data() + half);
  }

  const float* Query(const LayerContext& producer, int consumer) override {
    // Layers with a sliding window attend to their window, whatever a predictor says.
    if (!config_.sliding_window.empty() && config_.sliding_window[consumer] > 0) return nullptr;
    const LayerWeights& layer = weights_.layers[consumer];
    RmsNorm({.x = residual_,
             .weight = layer.input_norm.as<float>(),
             .out = normed_.data(),
             .eps = config_.rms_norm_eps,
             .num_rows = 1,
             .hidden_size = config_.hidden_size});
    const bool is_bf16 = layer.q_proj.dtype == DType::kBF16;
    if (is_bf16) RoundToBf16(normed_.data(), config_.hidden_size, rounded_.data());
    Linear({.x = is_bf16 ? static_cast<const void*>(rounded_.data()) : normed_.data(),
            .x_dtype = layer.q_proj.dtype,
            .weight = layer.q_proj.data,
            .weight_dtype = layer.q_proj.dtype,
            .bias = layer.q_bias.as<float>(),
            .y = query_.data(),
            .num_rows = 1,
            .in_features = config_.hidden_size,
            .out_features = config_.num_heads * config_.head_dim},
           *producer.pool);
    if (correction_ != nullptr) AddCorrection(consumer, *producer.pool);
    for (int h = 0; h < config_.num_heads; ++h) {
      Rotate(rotation_.data(), rope_, query_.data() + static_cast<size_t>(h) * config_.head_dim);
    }
    return query_.data();
  }

 private:
  void AddCorrection(int layer, ComputePool& pool) {
    const int rank = correction_->correction_rank, num_rows = static_cast<int>(query_.size());
    Multiply(correction_->correction_down, int64_t{layer} * rank, rank, normed_, down_.data(),
             pool);
    Multiply(correction_->correction_up, int64_t{layer} * num_rows, num_rows, down_, added_.data(),
             pool);
    for (size_t i = 0; i < query_.size(); ++i) query_[i] += added_[i];
  }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const Rope& rope_;
  const int layers_ahead_;
  const LayerPoint point_;
  const Predictor* correction_;
  const float* residual_ = nullptr;  // between Begin and the producer's last Query
  std::vector<float> rotation_;      // cosines, sines
  std::vector<float> normed_;
  std::vector<BF16> rounded_;
  std::vector<float> query_;
  std::vector<float> down_, added_;  // of the correction
};

class ProducerQuery : public QueryPredictor {
 public:
  ProducerQuery(const SelectionResources& resources, const Predictor& predictor)
      : predictor_(predictor),
        num_layers_(resources.config->num_layers),
        hidden_size_(resources.config->hidden_size),
        slot_size_(resources.config->num_heads * predictor.projected_dim),
        normed_dtype_(resources.weights->layers.front().q_proj.dtype),
        sliding_window_(resources.config->sliding_window),
        input_(static_cast<size_t>(hidden_size_)),
        hidden_(static_cast<size_t>(predictor.hidden_dim)),
        query_(static_cast<size_t>(slot_size_)) {}

  std::unique_ptr<QueryPredictor> Clone() const override {
    return std::make_unique<ProducerQuery>(*this);
  }
  std::pair<int, int> Consumers(int layer) const override {
    return ConsumersOf(layer, predictor_.layers_per_predictor, num_layers_);
  }

  void Begin(const LayerContext& producer, const float* residual, const void* normed) override {
    const PredictorProducer& weights = ProducerOf(producer.layer);
    for (int i = 0; i < hidden_size_; ++i) {
      if (predictor_.input == PredictorInput::kBeforeNorm) {
        input_[i] = residual[i];
      } else {
        input_[i] = normed_dtype_ == DType::kBF16 ? ToFloat(static_cast<const BF16*>(normed)[i])
                                                  : static_cast<const float*>(normed)[i];
      }
    }
    LayerNorm(weights);
    Multiply(weights.input, 0, predictor_.hidden_dim, input_, hidden_.data(), *producer.pool);
    for (float& x : hidden_) x /= 1.0f + std::exp(-x);  // SiLU
  }

  const float* Query(const LayerContext& producer, int consumer) override {
    if (!sliding_window_.empty() && sliding_window_[consumer] > 0) return nullptr;
    const int slot = (consumer - 1) % predictor_.layers_per_predictor;
    Multiply(ProducerOf(producer.layer).output, int64_t{slot} * slot_size_, slot_size_, hidden_,
             query_.data(), *producer.pool);
    return query_.data();
  }

 private:
  const PredictorProducer& ProducerOf(int layer) const {
    return predictor_.producers[layer / predictor_.layers_per_predictor];
  }

  void LayerNorm(const PredictorProducer& weights) {
    double sum = 0, squares = 0;
    for (const float x : input_) sum += x;
    const double mean = sum / hidden_size_;
    for (const float x : input_) squares += (x - mean) * (x - mean);
    const double scale = 1 / std::sqrt(squares / hidden_size_ + PredictorProducer::kNormEpsilon);
    for (int i = 0; i < hidden_size_; ++i) {
      input_[i] = static_cast<float>((input_[i] - mean) * scale) * weights.norm_weight[i] +
                  weights.norm_bias[i];
    }
  }

  const Predictor& predictor_;
  const int num_layers_, hidden_size_;
  const int slot_size_;  // H * d'
  const DType normed_dtype_;
  const std::vector<int> sliding_window_;
  std::vector<float> input_, hidden_, query_;
};

}  // namespace

std::unique_ptr<QueryPredictor> NewLookaheadQuery(const SelectionResources& resources,
                                                  int layers_ahead, LayerPoint point) {
  return std::make_unique<LookaheadQuery>(resources, layers_ahead, point, nullptr);
}

std::unique_ptr<QueryPredictor> NewLookaheadQuery(const SelectionResources& resources,
                                                  const Predictor& predictor) {
  return std::make_unique<LookaheadQuery>(resources, predictor.layers_per_predictor,
                                          predictor.lookahead_point,
                                          predictor.correction_rank > 0 ? &predictor : nullptr);
}

std::unique_ptr<QueryPredictor> NewProducerQuery(const SelectionResources& resources,
                                                 const Predictor& predictor) {
  return std::make_unique<ProducerQuery>(resources, predictor);
}

}  // namespace tokenbutler
