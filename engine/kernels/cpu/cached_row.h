#pragma once

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/kv_row.h"

namespace tokenbutler {

// One cached row, element by element as float32: what the plain kernels read.
struct CachedRow {
  KvRows row;
  DType dtype;

  float operator[](int i) const {
    const float element = LoadElement(row.data, dtype, static_cast<size_t>(i));
    return row.scales == nullptr ? element : *row.scales * element;
  }
};

inline CachedRow CachedKey(const KvLayout& kv, const std::byte* block, int layer, int kv_head,
                           int row) {
  return {KeyRowsOf(kv, block, layer, kv_head, row), kv.dtype};
}
inline CachedRow CachedValue(const KvLayout& kv, const std::byte* block, int layer, int kv_head,
                             int row) {
  return {ValueRowsOf(kv, block, layer, kv_head, row), kv.dtype};
}

}  // namespace tokenbutler
