#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tokenbutler {

// Element types of weights, activations and KV rows.
enum class DType : uint8_t { kF32, kBF16, kF16, kI8 };

size_t DTypeBytes(DType dtype);           // bytes of one element
std::string_view DTypeName(DType dtype);  // "float32", "bfloat16", "float16", "int8"

// bfloat16 as stored: the upper half of a float32.
struct BF16 {
  uint16_t bits = 0;
};

inline float ToFloat(BF16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// Rounds to nearest even; NaN stays NaN (quiet).
inline BF16 ToBF16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<uint16_t>((u >> 16) | 0x0040u)};
  return BF16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE half precision bits -> float32, exact for every input.
float HalfToFloat(uint16_t half);

// float32 -> IEEE half precision bits, to nearest even; too large becomes infinity, NaN stays NaN.
uint16_t FloatToHalf(float x);

}  // namespace tokenbutler
