#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tokenbutler {

// A dense, row-major tensor somebody else owns: pointer, dtype and up to four dimensions.
// The only tensor type at the borders between folders. Rank 0 means "absent".
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape = {0, 0, 0, 0};

  bool empty() const { return data == nullptr; }
  int64_t num_elements() const {
    int64_t n = rank == 0 ? 0 : 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * DTypeBytes(dtype); }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

}  // namespace tokenbutler
