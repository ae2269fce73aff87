#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <type_traits>

#include "base/dtype.h"

namespace tokenbutler {

// LibTorch's view of prefill's arrays of float or BF16.

inline float ToFloat(float x) { return x; }  // beside dtype.h's, for code that has either

template <typename T>
inline constexpr at::ScalarType kScalarType = std::is_same_v<T, BF16> ? at::kBFloat16 : at::kFloat;

// A tensor over memory of ours; `data` is only written through it if it is an output.
template <typename T>
at::Tensor Wrap(const T* data, at::IntArrayRef shape, at::IntArrayRef strides) {
  return at::from_blob(const_cast<T*>(data), shape, strides,
                       at::TensorOptions().dtype(kScalarType<T>));
}

}  // namespace tokenbutler
