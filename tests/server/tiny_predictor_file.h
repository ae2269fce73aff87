#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/models/rope.h"
#include "engine/predictor/predictor_file.h"
#include "engine/weights/loader.h"
#include "tests/engine/predictor/tiny_predictor.h"

namespace tokenbutler {

// A predictor of kind tokenbutler with random weights for the model at `model_path`, made for these
// very files: a producer at every layer but the last, queries of 8 dimensions for the next one. Its
// MLPs have `hidden_dim` units; 0: as RandomPredictor has it, else all their weights are zeros.
// Throws when it cannot be written.
inline void WriteTinyPredictor(const std::string& path, const std::string& model_path,
                               int hidden_dim = 0) {
  const auto check = [](const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  };
  const auto model = LoadModel(model_path, {});
  check(model.status());
  const ModelConfig& config = model->config;
  const auto rope = Rope::Create(config.rope, config.head_dim, config.max_position);
  check(rope.status());
  const auto digest = ModelDigest(model_path);
  check(digest.status());
  Predictor predictor = RandomPredictor(PredictorKind::kTokenButler, FingerprintOf(config, *rope),
                                        /*projected_dim=*/8, /*layers_per_predictor=*/1);
  predictor.model_sha256 = {*digest};
  if (hidden_dim > 0) {
    predictor.hidden_dim = hidden_dim;
    const auto zeros = [hidden_dim](int size) {
      return PredictorMatrix::FromFloats(
          std::vector<float>(static_cast<size_t>(hidden_dim) * static_cast<size_t>(size)),
          DType::kF32);
    };
    for (PredictorProducer& producer : predictor.producers) {
      producer.input = zeros(config.hidden_size);
      producer.output = zeros(config.num_heads * predictor.projected_dim);
    }
  }
  check(WritePredictor(path, predictor));
}

}  // namespace tokenbutler
