#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/softmax_block.h"

namespace tokenbutler {

void SoftmaxBlockPlain(const SoftmaxBlockParams& p) {
  for (int r = 0; r < p.num_rows; ++r) {
    const size_t row = static_cast<size_t>(r) * p.num_keys;
    const VisibleKeys visible = p.visible[r];
    OnlineSoftmaxState& state = p.states[r];
    float max = state.max;
    for (int k = visible.begin; k < visible.end; ++k) {
      max = std::max(max, p.softmax_scale * p.logits[row + k]);
    }
    const bool is_first = state.sum == 0;
    const double rescale = is_first ? 0.0 : std::exp(double{state.max} - max);
    double sum = state.sum * rescale;
    for (int k = 0; k < p.num_keys; ++k) {
      const bool is_visible = visible.begin <= k && k < visible.end;
      const double logit = double{p.softmax_scale} * p.logits[row + k];
      const double weight = is_visible ? std::exp(logit - max) : 0.0;
      StoreElement(p.weights, p.weights_dtype, row + k, static_cast<float>(weight));
      sum += LoadElement(p.weights, p.weights_dtype, row + k);
    }
    state.max = max;
    state.sum = static_cast<float>(sum);
    if (is_first) continue;
    for (int d = 0; d < p.head_dim; ++d) {
      state.acc[d] = static_cast<float>(state.acc[d] * rescale);
    }
  }
}

}  // namespace tokenbutler
