#pragma once

#include <vector>

#include "base/status.h"
#include "base/tensor_view.h"
#include "engine/dense_math.h"
#include "engine/token_rows.h"
#include "engine/weights/model_weights.h"

namespace tokenbutler {

// The other half of a transformer layer: SwiGLU, down(silu(gate(x)) * up(x)) (arXiv 2002.05202).
// Immutable; the weights' owner must outlive it.
class MlpLayer {
 public:
  // INTERNAL when gate and up are not adjacent in memory.
  static absl::StatusOr<MlpLayer> Create(const LayerWeights& weights);

  // activations().normed -> activations().projected.
  void Run(TokenRows& rows, DenseMath& math) const;

 private:
  MlpLayer() = default;

  TensorView gate_up_;               // [2 * intermediate_size, hidden_size]
  std::vector<float> gate_up_bias_;  // [2 * intermediate_size], or empty
  TensorView down_;                  // [hidden_size, intermediate_size]
  TensorView down_bias_;             // [hidden_size], or empty
};

}  // namespace tokenbutler
