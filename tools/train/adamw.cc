#include "tools/train/adamw.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tokenbutler {

void AdamW::Update(float learning_rate, const AlignedFloats& gradients, AlignedFloats* values) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.999;
  constexpr float kEpsilon = 1e-8f;
  state_.first_moment.resize(values->size());
  state_.second_moment.resize(values->size());
  const auto updates = static_cast<double>(++state_.num_updates);
  const auto rate = static_cast<float>(learning_rate / (1 - std::pow(kBeta1, updates)));
  const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, updates)));
  const float kept = 1 - learning_rate * weight_decay_;
  float* x = values->data();
  float* m = state_.first_moment.data();
  float* v = state_.second_moment.data();
  for (size_t i = 0; i < values->size(); ++i) {
    const float g = gradients[i];
    m[i] = static_cast<float>(kBeta1) * m[i] + static_cast<float>(1 - kBeta1) * g;
    v[i] = static_cast<float>(kBeta2) * v[i] + static_cast<float>(1 - kBeta2) * g * g;
    x[i] = kept * x[i] - rate * m[i] / (std::sqrt(v[i]) * root + kEpsilon);
  }
}

float LearningRateAt(int64_t step, int64_t num_steps, float warmup, float learning_rate) {
  const double warm = std::round(warmup * static_cast<double>(num_steps));
  const auto done = static_cast<double>(step);
  if (done < warm) return static_cast<float>(learning_rate * (done + 1) / warm);
  const double left = std::max(1.0, static_cast<double>(num_steps) - warm);
  const double share = (done - warm) / left;
  return static_cast<float>(learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * share)));
}

double Norm(const AlignedFloats& values) {
  double sum = 0;
  for (const float x : values) sum += double{x} * x;
  return std::sqrt(sum);
}

}  // namespace tokenbutler
