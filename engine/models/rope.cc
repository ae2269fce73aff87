#include "engine/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace tokenbutler {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

bool IsPositive(float x) { return std::isfinite(x) && x > 0; }

absl::Status Validate(const RopeConfig& rope, int head_dim, int original_max_position) {
  if (head_dim <= 0 || head_dim % 2 != 0) {
    return InvalidArgumentError("head_dim is {}, must be positive and even", head_dim);
  }
  if (!std::isfinite(rope.theta) || rope.theta <= 1) {
    return InvalidArgumentError("rope_theta is {}, must be above 1", rope.theta);
  }
  if (rope.scaling != RopeConfig::Scaling::kNone && !IsPositive(rope.factor)) {
    return InvalidArgumentError("rope_scaling.factor is {}, must be positive", rope.factor);
  }
  const bool needs_original =
      rope.scaling == RopeConfig::Scaling::kLlama3 || rope.scaling == RopeConfig::Scaling::kYarn;
  if (needs_original && original_max_position <= 0) {
    return InvalidArgumentError(
        "rope_scaling.original_max_position_embeddings is {}, must be positive",
        original_max_position);
  }
  if (rope.scaling == RopeConfig::Scaling::kLlama3 &&
      !(IsPositive(rope.low_freq_factor) && std::isfinite(rope.high_freq_factor) &&
        rope.high_freq_factor > rope.low_freq_factor)) {
    return InvalidArgumentError(
        "rope_scaling.high_freq_factor is {}, must be above low_freq_factor ({}), both positive",
        rope.high_freq_factor, rope.low_freq_factor);
  }
  if (rope.scaling == RopeConfig::Scaling::kYarn &&
      !(IsPositive(rope.beta_slow) && IsPositive(rope.beta_fast))) {
    return InvalidArgumentError("rope_scaling.beta_fast is {} and beta_slow {}, must be positive",
                                rope.beta_fast, rope.beta_slow);
  }
  if (rope.attention_factor.has_value() && !IsPositive(*rope.attention_factor)) {
    return InvalidArgumentError("rope_scaling.attention_factor is {}, must be positive",
                                *rope.attention_factor);
  }
  if (!rope.frequency_factors.empty() && rope.frequency_factors.size() != head_dim / 2) {
    return InvalidArgumentError("rope frequency factors are {}, must be head_dim / 2 = {}",
                                rope.frequency_factors.size(), head_dim / 2);
  }
  for (const float factor : rope.frequency_factors) {
    if (!IsPositive(factor)) {
      return InvalidArgumentError("a rope frequency factor is {}, must be positive", factor);
    }
  }
  return absl::OkStatus();
}

// Llama 3.1: slow rotations are interpolated, fast ones kept, those between blended.
double Llama3Frequency(const RopeConfig& rope, double frequency, int original_max_position) {
  const double wavelength = kTwoPi / frequency;
  if (wavelength < original_max_position / rope.high_freq_factor) return frequency;
  if (wavelength > original_max_position / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original_max_position / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN: the range of channel pairs over which interpolation sets in. Pairs below `low` turn more
// than beta_fast times within the original context and stay as they are; pairs above `high` turn
// less than beta_slow times and are interpolated.
struct YarnRamp {
  double low;
  double high;

  double InterpolatedShare(int pair) const {
    return std::clamp((pair - low) / (high - low), 0.0, 1.0);
  }
};

YarnRamp ComputeYarnRamp(const RopeConfig& rope, int head_dim, int original_max_position) {
  const auto pair_that_turns = [&](double rotations) {
    return head_dim * std::log(original_max_position / (rotations * kTwoPi)) /
           (2 * std::log(double{rope.theta}));
  };
  double low = pair_that_turns(rope.beta_fast);
  double high = pair_that_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  return {low, high};
}

float YarnAttentionFactor(const RopeConfig& rope) {
  if (rope.attention_factor.has_value()) return *rope.attention_factor;
  const auto temperature = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(double{rope.factor}) + 1.0;
  };
  const float mscale = rope.mscale.value_or(0);
  const float mscale_all_dim = rope.mscale_all_dim.value_or(0);
  if (mscale == 0 || mscale_all_dim == 0) return static_cast<float>(temperature(1));
  return static_cast<float>(temperature(mscale) / temperature(mscale_all_dim));
}

}  // namespace

absl::StatusOr<Rope> Rope::Create(const RopeConfig& rope, int head_dim, int max_position) {
  const int original = rope.original_max_position > 0 ? rope.original_max_position : max_position;
  RETURN_IF_ERROR(Validate(rope, head_dim, original));

  const bool yarn = rope.scaling == RopeConfig::Scaling::kYarn;
  const YarnRamp ramp = yarn ? ComputeYarnRamp(rope, head_dim, original) : YarnRamp{0, 1};
  std::vector<float> frequencies(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(double{rope.theta}, -2.0 * i / head_dim);
    switch (rope.scaling) {
      case RopeConfig::Scaling::kNone:
        break;
      case RopeConfig::Scaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeConfig::Scaling::kLlama3:
        frequency = Llama3Frequency(rope, frequency, original);
        break;
      case RopeConfig::Scaling::kYarn: {
        const double share = ramp.InterpolatedShare(i);
        frequency = share * frequency / rope.factor + (1 - share) * frequency;
        break;
      }
    }
    if (!rope.frequency_factors.empty()) frequency /= rope.frequency_factors[i];
    frequencies[i] = static_cast<float>(frequency);
  }
  return Rope(std::move(frequencies), yarn ? YarnAttentionFactor(rope) : 1.0f);
}

Rope::Rope(std::vector<float> inverse_frequencies, float attention_factor)
    : inverse_frequencies_(std::move(inverse_frequencies)), attention_factor_(attention_factor) {}

void Rope::Rotation(int position, float* cos, float* sin) const {
  for (int i = 0; i < half_dim(); ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies_[i];
    cos[i] = std::cos(angle) * attention_factor_;
    sin[i] = std::sin(angle) * attention_factor_;
  }
}

}  // namespace tokenbutler
