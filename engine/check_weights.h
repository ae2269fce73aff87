#pragma once

#include "absl/status/status.h"
#include "engine/models/model_config.h"
#include "engine/weights/model_weights.h"

namespace tokenbutler {

// Whether the weights are those of such a model: every one present, of its shape, matrices of one
// dtype (bf16 or float32), norms and biases float32. INVALID_ARGUMENT naming the first that is not.
absl::Status CheckWeights(const ModelConfig& config, const ModelWeights& weights);

}  // namespace tokenbutler
