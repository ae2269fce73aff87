#include "engine/kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace tokenbutler {

int TopK(const float* scores, int n, int k, int32_t* indices) {
  return TopKPlain(scores, n, k, indices);
}

float KthLargest(const float* scores, int n, int k) {
  std::vector<float> sorted(scores, scores + n);
  for (float& score : sorted) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
  return sorted[k - 1];
}

}  // namespace tokenbutler
