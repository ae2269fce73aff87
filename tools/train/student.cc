#include "tools/train/student.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <tuple>
#include <utility>

#include "engine/counter_rng.h"
#include "tools/train/lookahead_student.h"
#include "tools/train/producer_student.h"

namespace tokenbutler {
namespace {

int KeyDim(const StudentOptions& options, const ModelConfig& config) {
  return options.keys == TrainedKeys::kFull ? config.head_dim : options.projected_dim;
}

bool HasWindow(const ModelConfig& config, int layer) {
  return !config.sliding_window.empty() && config.sliding_window[layer] > 0;
}

}  // namespace

void Randomise(float bound, uint64_t seed, uint32_t stream, float* values, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    values[i] = bound * static_cast<float>(2 * UniformAt(seed, stream, i) - 1);
  }
}

void ForEachOnPool(ComputePool& pool, int count, const std::function<void(int)>& fn) {
  std::exception_ptr error;
  std::once_flag is_first;
  pool.ParallelFor(count, [&](int i) {
    try {
      fn(i);
    } catch (...) {
      std::call_once(is_first, [&] { error = std::current_exception(); });
    }
  });
  if (error) std::rethrow_exception(error);
}

Student::Student(const StudentOptions& options, const SelectionResources& model, ComputePool& pool,
                 absl::Span<const float> directions)
    : options_(options), model_(model), pool_(pool), key_dim_(KeyDim(options, *model.config)) {
  if (options.keys == TrainedKeys::kFull) return;
  const ModelConfig& config = *model.config;
  const size_t per_query_head = directions.size() * config.group_size();
  key_projection_ = parameters_.Add(directions.size());
  if (options.kind == PredictorKind::kLookahead) {
    early_projection_ = parameters_.Add(per_query_head);
  }
  if (options.late) late_projection_ = parameters_.Add(per_query_head);

  std::copy(directions.begin(), directions.end(), parameters_.values(key_projection_));
  // Orthogonal directions keep the products' size, so their scale is that of d_h channels.
  const float scale = std::sqrt(static_cast<float>(key_dim_) / config.head_dim);
  const size_t matrix = static_cast<size_t>(config.head_dim) * key_dim_;
  for (const Parameters::Array& array : {early_projection_, late_projection_}) {
    float* to = parameters_.values(array);
    for (size_t i = 0; i < array.size; ++i) {
      const size_t head = i / matrix;
      to[i] = scale * directions[head / config.group_size() * matrix + i % matrix];
    }
  }
}

void Student::LayOut() {
  const ModelConfig& config = *model_.config;
  const size_t per_key_head = static_cast<size_t>(config.head_dim) * key_dim_;
  const auto at = [&](const Parameters::Array& array, int layer, size_t num_matrices) {
    const size_t offset = layer * num_matrices * per_key_head;
    return std::pair(parameters_.values(array) + offset, parameters_.gradients(array) + offset);
  };
  for (int l = 0; l < config.num_layers; ++l) {
    const bool predicts = l > 0;
    // Without late projections the engine gives a lookahead predictor's early ones to layer 0.
    const Parameters::Array own =
        late_projection_.size > 0 || predicts ? late_projection_ : early_projection_;
    if (HasWindow(config, l) || (!predicts && own.size == 0)) continue;
    ScoredLayer layer;
    layer.layer = l;
    if (key_projection_.size > 0) {
      std::tie(layer.key_projections, layer.key_projection_gradients) =
          at(key_projection_, l, config.num_kv_heads);
    }
    if (predicts && early_projection_.size > 0) {
      std::tie(layer.early.projections, layer.early.projection_gradients) =
          at(early_projection_, l, config.num_heads);
    }
    if (own.size > 0) {
      std::tie(layer.late.projections, layer.late.projection_gradients) =
          at(own, l, config.num_heads);
    }
    layers_.push_back(layer);
  }
}

void Student::ScoreOwnQueries(const TeacherPass& pass) {
  for (ScoredLayer& layer : layers_) {
    if (layer.late.projections == nullptr) continue;
    layer.late.queries = pass.queries[layer.layer].data();
    layer.late.stride = static_cast<size_t>(model_.config->num_heads) * model_.config->head_dim;
  }
}

float Student::score_scale() const { return 1.0f / std::sqrt(static_cast<float>(key_dim_)); }

Predictor Student::Export() const {
  Predictor predictor;
  predictor.kind = options_.kind;
  predictor.projected_dim = options_.keys == TrainedKeys::kFull ? 0 : options_.projected_dim;
  predictor.layers_per_predictor = options_.layers_per_predictor;
  predictor.pooling = options_.pooling;
  predictor.fingerprint = FingerprintOf(*model_.config, *model_.rope);
  predictor.key_projection = parameters_.Copy(key_projection_);
  predictor.early_projection = parameters_.Copy(early_projection_);
  predictor.late_projection = parameters_.Copy(late_projection_);
  return predictor;
}

absl::StatusOr<std::unique_ptr<Student>> NewStudent(const StudentOptions& options,
                                                    const SelectionResources& model,
                                                    ComputePool& pool,
                                                    absl::Span<const float> directions,
                                                    uint64_t seed) {
  RETURN_IF_ERROR(options.Validate());
  const ModelConfig& config = *model.config;
  if (config.num_layers < 2) {
    return InvalidArgumentError(
        "num_layers of the model is {}, must be at least 2: layer 0 is the "
        "first that something can be predicted from",
        config.num_layers);
  }
  if (options.layers_per_predictor > config.num_layers) {
    return InvalidArgumentError("layers_per_predictor is {}, must be in [1, {}]",
                                options.layers_per_predictor, config.num_layers);
  }
  size_t num_directions = 0;
  if (options.keys == TrainedKeys::kProjected) {
    if (options.projected_dim > config.head_dim) {
      return InvalidArgumentError("projected_dim is {}, must be at most {}, the head_dim",
                                  options.projected_dim, config.head_dim);
    }
    num_directions = static_cast<size_t>(config.num_layers) * config.num_kv_heads *
                     config.head_dim * options.projected_dim;
  }
  if (directions.size() != num_directions) {
    return InvalidArgumentError("directions has {} elements, must have {}", directions.size(),
                                num_directions);
  }
  std::unique_ptr<Student> student;
  if (options.kind == PredictorKind::kLookahead) {
    student = NewLookaheadStudent(options, model, pool, directions, seed);
  } else {
    student = NewProducerStudent(options, model, pool, directions, seed);
  }
  if (student->layers().empty()) {
    return InvalidArgumentError(
        "all layers of the model have a sliding window: none is left to "
        "predict for");
  }
  return student;
}

}  // namespace tokenbutler
