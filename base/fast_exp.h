#pragma once

#include <bit>
#include <cstdint>

namespace tokenbutler {

// exp(x) for x <= 0 with a relative error below 3e-7, branch-free so that a loop over a row of
// logits vectorises on any x86-64 (glibc's expf does not). 0 below -87 and for -Inf.
// Splits x = n ln 2 + r, |r| <= ln 2 / 2, and takes exp(r) from its Taylor series up to r^7.
inline float FastExp(float x) {
  constexpr float kLowest = -87.0f;  // exp of it is the last one well above the subnormals
  const float clamped = x < kLowest ? kLowest : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
  constexpr float kRound = 12582912.0f;
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float sum = 1.0f / 5040;
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const auto exponent = static_cast<uint32_t>(std::bit_cast<int32_t>(shifted)) << 23;
  const float scaled = std::bit_cast<float>(std::bit_cast<uint32_t>(sum) + exponent);
  return x < kLowest ? 0.0f : scaled;
}

}  // namespace tokenbutler
