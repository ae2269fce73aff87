#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/kernels/top_k.h"

namespace tokenbutler {

int TopKPlain(const float* scores, int n, int k, int32_t* indices) {
  k = std::clamp(k, 0, n);
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[b])) return !std::isnan(scores[a]);
    return scores[a] > scores[b];
  });
  std::copy_n(order.begin(), k, indices);
  std::sort(indices, indices + k);
  return k;
}

}  // namespace tokenbutler
