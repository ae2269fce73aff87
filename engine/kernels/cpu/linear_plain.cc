#include <cstddef>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/linear.h"

namespace tokenbutler {

void LinearPlain(const LinearParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const size_t x = static_cast<size_t>(row) * p.in_features;
    for (int out = 0; out < p.out_features; ++out) {
      const size_t weight = static_cast<size_t>(out) * p.in_features;
      double sum = p.bias == nullptr ? 0.0 : p.bias[out];
      for (int i = 0; i < p.in_features; ++i) {
        sum += double{LoadElement(p.x, p.x_dtype, x + i)} *
               LoadElement(p.weight, p.weight_dtype, weight + i);
      }
      p.y[static_cast<size_t>(row) * p.out_features + out] = static_cast<float>(sum);
    }
  }
}

void RoundToBf16Plain(const float* x, int num_elements, BF16* out) {
  for (int i = 0; i < num_elements; ++i) out[i] = ToBF16(x[i]);
}

}  // namespace tokenbutler
