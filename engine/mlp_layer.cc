#include "engine/mlp_layer.h"

#include "engine/adjacent_matrices.h"
#include "engine/kernels/swiglu.h"

namespace tokenbutler {

absl::StatusOr<MlpLayer> MlpLayer::Create(const LayerWeights& weights) {
  MlpLayer mlp;
  ASSIGN_OR_RETURN(mlp.gate_up_, JoinAdjacent({weights.gate_proj, weights.up_proj}, "gate, up"));
  mlp.gate_up_bias_ =
      JoinBiases({weights.gate_bias, weights.up_bias}, {weights.gate_proj, weights.up_proj});
  mlp.down_ = weights.down_proj;
  mlp.down_bias_ = weights.down_bias;
  return mlp;
}

void MlpLayer::Run(TokenRows& rows, DenseMath& math) const {
  const Activations& a = rows.activations();
  const int size = rows.config().intermediate_size;
  const float* gate_up_bias = gate_up_bias_.empty() ? nullptr : gate_up_bias_.data();

  math.Linear(a.normed, gate_up_, gate_up_bias, a.gate_up, rows.num_rows());
  math.ForRows(rows.num_rows(), [&](int begin, int end) {
    SwiGlu({.gate_up = a.gate_up + static_cast<size_t>(begin) * 2 * size,
            .out = rows.Unrounded(a.activated, begin, size),
            .num_rows = end - begin,
            .intermediate_size = size});
    rows.Round(a.activated, begin, end, size);
  });
  math.Linear(a.activated, down_, down_bias_.as<float>(), a.projected, rows.num_rows());
}

}  // namespace tokenbutler
