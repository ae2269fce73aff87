#include "tools/train/lookahead_student.h"

#include <cmath>
#include <utility>

#include "engine/kernels/linear.h"
#include "engine/kernels/rms_norm.h"
#include "engine/selection/kv_rows.h"
#include "tools/train/matrix_product.h"

namespace tokenbutler {
namespace {

class LookaheadStudent : public Student {
 public:
  LookaheadStudent(const StudentOptions& options, const SelectionResources& model,
                   ComputePool& pool, absl::Span<const float> directions, uint64_t seed)
      : Student(options, model, pool, directions),
        hidden_size_(model.config->hidden_size),
        query_size_(model.config->num_heads * model.config->head_dim),
        rank_(options.correction_rank) {
    const size_t num_layers = static_cast<size_t>(model.config->num_layers);
    down_ = parameters_.Add(num_layers * rank_ * hidden_size_);
    up_ = parameters_.Add(num_layers * query_size_ * rank_);
    Randomise(1.0f / std::sqrt(static_cast<float>(hidden_size_)), seed, 0,
              parameters_.values(down_), down_.size);
    LayOut();
    activations_.resize(layers_.size());
  }

  void Forward(const TeacherPass& pass) override {
    num_rows_ = static_cast<int>(pass.rows.size());
    FindRotations(pass.rows);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].layer > 0) PredictQueries(pass, layers_[i], &activations_[i]);
    }
    ForEachOnPool(pool_, static_cast<int>(layers_.size()), [&](int i) {
      if (layers_[i].layer > 0) CorrectAndRotate(layers_[i].layer, &activations_[i]);
    });
    ScoreOwnQueries(pass);
  }

  void Backward(const TeacherPass&) override {
    if (rank_ == 0) return;
    ForEachOnPool(pool_, static_cast<int>(layers_.size()), [&](int i) {
      if (layers_[i].layer > 0) CorrectionGradients(layers_[i].layer, &activations_[i]);
    });
  }

  Predictor Export() const override {
    Predictor predictor = Student::Export();
    predictor.lookahead_point = options_.point;
    predictor.correction_rank = rank_;
    predictor.correction_down = PredictorMatrix::FromFloats(parameters_.Copy(down_), DType::kBF16);
    predictor.correction_up = PredictorMatrix::FromFloats(parameters_.Copy(up_), DType::kBF16);
    return predictor;
  }

  size_t bytes() const override {
    size_t floats = rotations_.capacity();
    for (const Activations& a : activations_) {
      floats +=
          a.normed.capacity() + a.inner.capacity() + a.queries.capacity() + a.gradients.capacity();
    }
    return floats * sizeof(float);
  }

 private:
  // Of one layer. R rows.
  struct Activations {
    AlignedFloats normed;     // [R, E]
    AlignedFloats inner;      // [R, r]
    AlignedFloats queries;    // [R, H, d_h]
    AlignedFloats gradients;  // of the queries
  };

  // [R, d_h]: cosines, sines of each row's position.
  void FindRotations(absl::Span<const int> positions) {
    const int half = model_.config->head_dim / 2;
    rotations_.resize(positions.size() * 2 * half);
    float* to = rotations_.data();
    for (const int position : positions) {
      model_.rope->Rotation(position, to, to + half);
      to += 2 * half;
    }
  }

  // W_q n + b, rounded where the engine rounds.
  void PredictQueries(const TeacherPass& pass, ScoredLayer& layer, Activations* a) {
    const LayerWeights& weights = model_.weights->layers[layer.layer];
    const size_t rows = static_cast<size_t>(num_rows_);
    a->normed.resize(rows * hidden_size_);
    a->queries.resize(rows * query_size_);
    RmsNorm({.x = pass.hidden[producer_of(layer.layer)].data(),
             .weight = weights.input_norm.as<float>(),
             .out = a->normed.data(),
             .eps = model_.config->rms_norm_eps,
             .num_rows = num_rows_,
             .hidden_size = hidden_size_});
    const DType dtype = weights.q_proj.dtype;
    if (dtype == DType::kBF16) {
      rounded_.resize(a->normed.size());
      RoundToBf16(a->normed.data(), static_cast<int>(a->normed.size()), rounded_.data());
    }
    Linear(
        {.x = dtype == DType::kBF16 ? static_cast<const void*>(rounded_.data()) : a->normed.data(),
         .x_dtype = dtype,
         .weight = weights.q_proj.data,
         .weight_dtype = dtype,
         .bias = weights.q_bias.as<float>(),
         .y = a->queries.data(),
         .num_rows = num_rows_,
         .in_features = hidden_size_,
         .out_features = query_size_},
        pool_);
    layer.early.queries = a->queries.data();
    layer.early.stride = static_cast<size_t>(query_size_);
    if (rank_ == 0) return;
    a->gradients.resize(a->queries.size());
    layer.early.query_gradients = a->gradients.data();
  }

  Matrix Down(int layer) {
    return {.data = parameters_.values(down_) + layer * DownSize(),
            .rows = rank_,
            .columns = hidden_size_};
  }
  Matrix Up(int layer) {
    return {
        .data = parameters_.values(up_) + layer * UpSize(), .rows = query_size_, .columns = rank_};
  }
  size_t DownSize() const { return static_cast<size_t>(rank_) * hidden_size_; }
  size_t UpSize() const { return static_cast<size_t>(query_size_) * rank_; }

  void CorrectAndRotate(int layer, Activations* a) {
    if (rank_ > 0) {
      a->inner.resize(static_cast<size_t>(num_rows_) * rank_);
      Multiply({.data = a->normed.data(), .rows = num_rows_, .columns = hidden_size_},
               Down(layer).Transposed(), /*adds=*/false, a->inner.data());
      Multiply({.data = a->inner.data(), .rows = num_rows_, .columns = rank_},
               Up(layer).Transposed(), /*adds=*/true, a->queries.data());
    }
    ForHeads(a->queries,
             [&](const float* rotation, float* head) { Rotate(rotation, *model_.rope, head); });
  }

  void CorrectionGradients(int layer, Activations* a) {
    // The transpose of the rotation: turned back, with the attention factor once more.
    const float factor = model_.rope->attention_factor();
    const int head_dim = model_.config->head_dim;
    ForHeads(a->gradients, [&](const float* rotation, float* head) {
      RotateBack(rotation, *model_.rope, head);
      for (int i = 0; i < head_dim; ++i) head[i] *= factor * factor;
    });
    const Matrix gradients = {
        .data = a->gradients.data(), .rows = num_rows_, .columns = query_size_};
    const Matrix inner = {.data = a->inner.data(), .rows = num_rows_, .columns = rank_};
    Multiply(gradients.Transposed(), inner, /*adds=*/true,
             parameters_.gradients(up_) + layer * UpSize());
    // The inner values are not needed any more: their gradients take their place.
    Multiply(gradients, Up(layer), /*adds=*/false, a->inner.data());
    Multiply(inner.Transposed(),
             {.data = a->normed.data(), .rows = num_rows_, .columns = hidden_size_}, /*adds=*/true,
             parameters_.gradients(down_) + layer * DownSize());
  }

  // Calls fn(rotation, head) for every row's heads.
  template <typename Fn>
  void ForHeads(AlignedFloats& rows, const Fn& fn) const {
    const int head_dim = model_.config->head_dim;
    for (int row = 0; row < num_rows_; ++row) {
      const float* rotation = rotations_.data() + static_cast<size_t>(row) * head_dim;
      float* head = rows.data() + static_cast<size_t>(row) * query_size_;
      for (int h = 0; h < model_.config->num_heads; ++h, head += head_dim) fn(rotation, head);
    }
  }

  const int hidden_size_, query_size_;  // E, H d_h
  const int rank_;                      // r
  Parameters::Array down_, up_;         // V [L, r, E], U [L, H d_h, r]
  int num_rows_ = 0;
  std::vector<Activations> activations_;  // of each of layers_
  AlignedFloats rotations_;
  std::vector<BF16> rounded_;
};

}  // namespace

std::unique_ptr<Student> NewLookaheadStudent(const StudentOptions& options,
                                             const SelectionResources& model, ComputePool& pool,
                                             absl::Span<const float> directions, uint64_t seed) {
  return std::make_unique<LookaheadStudent>(options, model, pool, directions, seed);
}

}  // namespace tokenbutler
