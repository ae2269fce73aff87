#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tokenbutler {

// One element of an array as float32: what the plain kernels are made of. kI8: the code, without
// its row's scale.
inline float LoadElement(const void* array, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kBF16:
      return ToFloat(static_cast<const BF16*>(array)[index]);
    case DType::kF16:
      return HalfToFloat(static_cast<const uint16_t*>(array)[index]);
    case DType::kI8:
      return static_cast<const int8_t*>(array)[index];
    default:
      return static_cast<const float*>(array)[index];
  }
}

// Rounds to nearest even. REQUIRES: dtype is kF32, kBF16 or kF16.
inline void StoreElement(void* array, DType dtype, size_t index, float value) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<BF16*>(array)[index] = ToBF16(value);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(array)[index] = FloatToHalf(value);
      return;
    default:
      static_cast<float*>(array)[index] = value;
  }
}

}  // namespace tokenbutler
