#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tokenbutler {

// Divergence of a layer's student from the teacher in nats, mean over rows and heads.
struct LayerKl {
  int layer = 0;
  std::optional<float> early;  // of the predicted queries; unset: the layer has none
  std::optional<float> late;   // of its own queries; unset: they are not projected
};

// What a step or a validation has given.
struct TrainingEvent {
  enum class Kind { kStep, kValidation };
  Kind kind = Kind::kStep;
  int64_t step = 0;             // steps done
  double seconds = 0;           // since the run began, without pauses
  float loss = 0;               // nats, mean over layers; early and late ones added
  float learning_rate = 0;      // kStep
  float gradient_norm = 0;      // kStep; before clipping
  bool is_best = false;         // kValidation
  std::vector<LayerKl> layers;  // kValidation
};

}  // namespace tokenbutler
