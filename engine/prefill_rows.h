#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/dtype.h"
#include "engine/kernels/kv_row.h"
#include "engine/kernels/linear.h"

namespace tokenbutler {

// What prefill's attention is computed in is float32 or bf16, whatever queries and cache are in.

inline void FromFloats(const float* from, int count, float* to) { std::copy_n(from, count, to); }
inline void FromFloats(const float* from, int count, BF16* to) { RoundToBf16(from, count, to); }

// Cached rows, widened or rounded. [num_rows, head_dim] `widened` is a workspace that only grows.
inline void ReadRows(const KvRows& rows, const KvLayout& layout, int num_rows,
                     std::vector<float>* widened, float* to) {
  (void)widened;
  LoadKvRows(rows, layout, num_rows, to);
}
inline void ReadRows(const KvRows& rows, const KvLayout& layout, int num_rows,
                     std::vector<float>* widened, BF16* to) {
  const size_t size = static_cast<size_t>(num_rows) * layout.head_dim;
  if (layout.dtype == DType::kBF16) {
    std::copy_n(reinterpret_cast<const BF16*>(rows.data), size, to);
    return;
  }
  if (widened->size() < size) widened->resize(size);
  LoadKvRows(rows, layout, num_rows, widened->data());
  RoundToBf16(widened->data(), static_cast<int>(size), to);
}

}  // namespace tokenbutler
