#include "tools/train/producer_student.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/kernels/linear.h"
#include "engine/kernels/rms_norm.h"
#include "tools/train/matrix_product.h"

namespace tokenbutler {
namespace {

class ProducerStudent : public Student {
 public:
  ProducerStudent(const StudentOptions& options, const SelectionResources& model, ComputePool& pool,
                  absl::Span<const float> directions, uint64_t seed)
      : Student(options, model, pool, directions),
        hidden_size_(model.config->hidden_size),
        inner_size_(options.hidden_dim),
        slot_size_(model.config->num_heads * key_dim_),
        output_size_(options.layers_per_predictor * slot_size_) {
    const int num_producers = producer_of(model.config->num_layers - 1) + 1;
    producers_.resize(num_producers);
    for (size_t p = 0; p < producers_.size(); ++p) {
      Producer& producer = producers_[p];
      producer.norm_weight = parameters_.Add(hidden_size_);
      producer.norm_bias = parameters_.Add(hidden_size_);
      producer.input = parameters_.Add(static_cast<size_t>(inner_size_) * hidden_size_);
      producer.output = parameters_.Add(static_cast<size_t>(output_size_) * inner_size_);
      std::fill_n(parameters_.values(producer.norm_weight), hidden_size_, 1.0f);
      const auto stream = static_cast<uint32_t>(2 * p);
      Randomise(1.0f / std::sqrt(static_cast<float>(hidden_size_)), seed, stream,
                parameters_.values(producer.input), producer.input.size);
      Randomise(1.0f / std::sqrt(static_cast<float>(inner_size_)), seed, stream + 1,
                parameters_.values(producer.output), producer.output.size);
    }
    LayOut();
  }

  void Forward(const TeacherPass& pass) override {
    num_rows_ = static_cast<int>(pass.rows.size());
    ForEachOnPool(pool_, static_cast<int>(producers_.size()), [&](int p) { Predict(pass, p); });
    for (ScoredLayer& layer : layers_) {
      if (layer.layer == 0) continue;
      Producer& producer = producers_[producer_of(layer.layer)];
      const int slot = (layer.layer - 1) % options_.layers_per_predictor;
      const size_t at = static_cast<size_t>(slot) * slot_size_;
      layer.early.queries = producer.queries.data() + at;
      layer.early.stride = static_cast<size_t>(output_size_);
      layer.early.query_gradients = producer.gradients.data() + at;
    }
    ScoreOwnQueries(pass);
  }

  void Backward(const TeacherPass&) override {
    ForEachOnPool(pool_, static_cast<int>(producers_.size()),
                  [&](int p) { ProducerGradients(&producers_[p]); });
  }

  Predictor Export() const override {
    Predictor predictor = Student::Export();
    predictor.hidden_dim = inner_size_;
    predictor.input = options_.input;
    for (const Producer& p : producers_) {
      predictor.producers.push_back(
          {.norm_weight = parameters_.Copy(p.norm_weight),
           .norm_bias = parameters_.Copy(p.norm_bias),
           .input = PredictorMatrix::FromFloats(parameters_.Copy(p.input), DType::kBF16),
           .output = PredictorMatrix::FromFloats(parameters_.Copy(p.output), DType::kBF16)});
    }
    return predictor;
  }

  size_t bytes() const override {
    size_t floats = 0;
    for (const Producer& p : producers_) {
      floats += p.standard.capacity() + p.normed.capacity() + p.inner.capacity() +
                p.activated.capacity() + p.queries.capacity() + p.gradients.capacity();
    }
    return floats * sizeof(float);
  }

 private:
  struct Producer {
    Parameters::Array norm_weight, norm_bias;  // [E]
    Parameters::Array input;                   // [I, E]
    Parameters::Array output;                  // [G H d', I]
    AlignedFloats standard;                    // [R, E]: mean 0, variance 1
    AlignedFloats normed;                      // [R, E]; on the way back, its gradients
    AlignedFloats inner, activated;            // [R, I]: before and after the SiLU
    AlignedFloats queries;                     // [R, G H d']
    // Of the queries; slots that no layer reads stay 0.
    AlignedFloats gradients;
  };

  Matrix Rows(const AlignedFloats& rows, int size) const {
    return {.data = rows.data(), .rows = num_rows_, .columns = size};
  }
  Matrix Weights(const Parameters::Array& array, int rows, int columns) const {
    return {.data = parameters_.values(array), .rows = rows, .columns = columns};
  }

  void Predict(const TeacherPass& pass, int index) {
    Producer& p = producers_[index];
    const size_t rows = static_cast<size_t>(num_rows_);
    for (AlignedFloats* buffer : {&p.standard, &p.normed}) buffer->resize(rows * hidden_size_);
    for (AlignedFloats* buffer : {&p.inner, &p.activated}) buffer->resize(rows * inner_size_);
    for (AlignedFloats* buffer : {&p.queries, &p.gradients}) buffer->resize(rows * output_size_);
    ReadInput(pass, index);
    Normalise(&p);
    Multiply(Rows(p.normed, hidden_size_), Weights(p.input, inner_size_, hidden_size_).Transposed(),
             /*adds=*/false, p.inner.data());
    for (size_t i = 0; i < p.inner.size(); ++i) {
      p.activated[i] = p.inner[i] / (1.0f + std::exp(-p.inner[i]));
    }
    Multiply(Rows(p.activated, inner_size_),
             Weights(p.output, output_size_, inner_size_).Transposed(), /*adds=*/false,
             p.queries.data());
  }

  // The producer layer's hidden state, before or after its input norm, to `standard`.
  void ReadInput(const TeacherPass& pass, int index) {
    AlignedFloats& to = producers_[index].standard;
    const float* hidden = pass.hidden[index].data();
    if (options_.input == PredictorInput::kBeforeNorm) {
      std::copy_n(hidden, to.size(), to.data());
      return;
    }
    const int layer = index * options_.layers_per_predictor;
    const LayerWeights& weights = model_.weights->layers[layer];
    RmsNorm({.x = hidden,
             .weight = weights.input_norm.as<float>(),
             .out = to.data(),
             .eps = model_.config->rms_norm_eps,
             .num_rows = num_rows_,
             .hidden_size = hidden_size_});
    if (weights.q_proj.dtype != DType::kBF16) return;
    for (float& x : to) x = ToFloat(ToBF16(x));
  }

  void Normalise(Producer* p) const {
    const float* weight = parameters_.values(p->norm_weight);
    const float* bias = parameters_.values(p->norm_bias);
    for (int row = 0; row < num_rows_; ++row) {
      float* x = p->standard.data() + static_cast<size_t>(row) * hidden_size_;
      float* y = p->normed.data() + static_cast<size_t>(row) * hidden_size_;
      double sum = 0, squares = 0;
      for (int i = 0; i < hidden_size_; ++i) sum += x[i];
      const double mean = sum / hidden_size_;
      for (int i = 0; i < hidden_size_; ++i) squares += (x[i] - mean) * (x[i] - mean);
      const double scale = 1 / std::sqrt(squares / hidden_size_ + PredictorProducer::kNormEpsilon);
      for (int i = 0; i < hidden_size_; ++i) {
        x[i] = static_cast<float>((x[i] - mean) * scale);
        y[i] = x[i] * weight[i] + bias[i];
      }
    }
  }

  void ProducerGradients(Producer* p) {
    const Matrix gradients = Rows(p->gradients, output_size_);
    Multiply(gradients.Transposed(), Rows(p->activated, inner_size_), /*adds=*/true,
             parameters_.gradients(p->output));
    Multiply(gradients, Weights(p->output, output_size_, inner_size_), /*adds=*/false,
             p->activated.data());
    // silu'(z) = s (1 + z (1 - s)), s = 1 / (1 + exp(-z)).
    for (size_t i = 0; i < p->inner.size(); ++i) {
      const float z = p->inner[i], s = 1.0f / (1.0f + std::exp(-z));
      p->inner[i] = p->activated[i] * s * (1.0f + z * (1.0f - s));
    }
    const Matrix inner = Rows(p->inner, inner_size_);
    Multiply(inner.Transposed(), Rows(p->normed, hidden_size_), /*adds=*/true,
             parameters_.gradients(p->input));
    Multiply(inner, Weights(p->input, inner_size_, hidden_size_), /*adds=*/false, p->normed.data());
    float* weight = parameters_.gradients(p->norm_weight);
    float* bias = parameters_.gradients(p->norm_bias);
    for (size_t i = 0; i < p->normed.size(); ++i) {
      const size_t column = i % static_cast<size_t>(hidden_size_);
      weight[column] += p->normed[i] * p->standard[i];
      bias[column] += p->normed[i];
    }
  }

  const int hidden_size_;  // E
  const int inner_size_;   // I
  const int slot_size_;    // H d'
  const int output_size_;  // G H d'
  int num_rows_ = 0;
  std::vector<Producer> producers_;
};

}  // namespace

std::unique_ptr<Student> NewProducerStudent(const StudentOptions& options,
                                            const SelectionResources& model, ComputePool& pool,
                                            absl::Span<const float> directions, uint64_t seed) {
  return std::make_unique<ProducerStudent>(options, model, pool, directions, seed);
}

}  // namespace tokenbutler
