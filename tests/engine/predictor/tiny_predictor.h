#pragma once

#include <random>
#include <vector>

#include "engine/predictor/predictor.h"

namespace tokenbutler {

// Normally distributed values.
inline std::vector<float> RandomValues(size_t n, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// A predictor with random weights for a model, all of its parts present.
inline Predictor RandomPredictor(PredictorKind kind, const ModelFingerprint& model,
                                 int projected_dim = 8, int layers_per_predictor = 2,
                                 DType dtype = DType::kF32) {
  Predictor p;
  p.kind = kind;
  p.projected_dim = projected_dim;
  p.layers_per_predictor = layers_per_predictor;
  p.fingerprint = model;
  const size_t matrix = static_cast<size_t>(model.num_layers) * model.head_dim * projected_dim;
  p.key_projection = RandomValues(matrix * model.num_kv_heads, 1, 0.3f);
  if (kind == PredictorKind::kPca) return p;
  p.late_projection = RandomValues(matrix * model.num_heads, 3, 0.3f);
  if (kind == PredictorKind::kLookahead) {
    p.early_projection = RandomValues(matrix * model.num_heads, 2, 0.3f);
    p.correction_rank = 4;
    const size_t ranks = static_cast<size_t>(model.num_layers) * p.correction_rank;
    p.correction_down =
        PredictorMatrix::FromFloats(RandomValues(ranks * model.hidden_size, 8, 0.1f), dtype);
    p.correction_up = PredictorMatrix::FromFloats(
        RandomValues(ranks * model.num_heads * model.head_dim, 9, 0.5f), dtype);
    return p;
  }
  p.hidden_dim = 24;
  const size_t hidden = static_cast<size_t>(model.hidden_size);
  const size_t outputs =
      static_cast<size_t>(layers_per_predictor) * model.num_heads * projected_dim;
  for (int i = 0; i < p.num_producers(); ++i) {
    const unsigned seed = 10 * static_cast<unsigned>(i);
    PredictorProducer producer;
    producer.norm_weight = RandomValues(hidden, seed + 4, 1.0f);
    producer.norm_bias = RandomValues(hidden, seed + 5, 0.1f);
    producer.input =
        PredictorMatrix::FromFloats(RandomValues(hidden * p.hidden_dim, seed + 6, 0.2f), dtype);
    producer.output =
        PredictorMatrix::FromFloats(RandomValues(outputs * p.hidden_dim, seed + 7, 0.5f), dtype);
    p.producers.push_back(std::move(producer));
  }
  return p;
}

// A predictor of kind kLookahead that serves low-bit keys alone.
inline Predictor RandomBitsPredictor(const ModelFingerprint& model, int layers_per_predictor = 2) {
  Predictor p = RandomPredictor(PredictorKind::kLookahead, model, 8, layers_per_predictor);
  p.projected_dim = 0;
  p.key_projection.clear();
  p.early_projection.clear();
  p.late_projection.clear();
  return p;
}

}  // namespace tokenbutler
