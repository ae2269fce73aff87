#include "engine/kernels/online_softmax.h"

#include <algorithm>
#include <cmath>

namespace tokenbutler {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// exp(from - to) for from <= to, also when both are -inf.
float Rescale(float from, float to) { return from == kMinusInfinity ? 0.0f : std::exp(from - to); }

}  // namespace

void OnlineSoftmaxState::Reset(int head_dim) {
  max = kMinusInfinity;
  sum = 0;
  std::fill_n(acc, head_dim, 0.0f);
}

void OnlineSoftmaxState::Add(float logit, const float* value, int head_dim) {
  const float new_max = std::max(max, logit);
  const float scale = Rescale(max, new_max);
  const float weight = Rescale(logit, new_max);
  max = new_max;
  sum = sum * scale + weight;
  for (int d = 0; d < head_dim; ++d) acc[d] = acc[d] * scale + weight * value[d];
}

void OnlineSoftmaxState::Merge(const OnlineSoftmaxState& other, int head_dim) {
  const float new_max = std::max(max, other.max);
  const float ours = Rescale(max, new_max);
  const float theirs = Rescale(other.max, new_max);
  max = new_max;
  sum = sum * ours + other.sum * theirs;
  for (int d = 0; d < head_dim; ++d) acc[d] = acc[d] * ours + other.acc[d] * theirs;
}

void OnlineSoftmaxState::Finish(float* out, int head_dim) const {
  const float scale = sum == 0 ? 0.0f : 1.0f / sum;
  for (int d = 0; d < head_dim; ++d) out[d] = acc[d] * scale;
}

float OnlineSoftmaxState::lse() const { return sum == 0 ? kMinusInfinity : max + std::log(sum); }

}  // namespace tokenbutler
