#pragma once

#include <cstddef>
#include <vector>

#include "offload/kv_layout.h"
#include "offload/transfer.h"

namespace tokenbutler {

// A row of a block, host's or device's.
struct RowSource {
  const std::byte* block = nullptr;
  int row = 0;
};
struct RowTarget {
  std::byte* block = nullptr;
  int row = 0;
};

// How many copies a run of rows takes: K rows, V rows and, where rows have them, their scales.
inline size_t CopiesPerRow(const KvLayout& layout) { return layout.has_scales() ? 3 : 2; }

// Appends the copies of `num_rows` consecutive tokens of one layer and KV head.
inline void AppendRowCopies(const KvLayout& layout, int layer, int kv_head, RowSource from,
                            RowTarget to, int num_rows, std::vector<RowCopy>* copies) {
  const auto append = [&](size_t offset, size_t bytes) {
    copies->push_back({.from = from.block + offset + static_cast<size_t>(from.row) * bytes,
                       .to = to.block + offset + static_cast<size_t>(to.row) * bytes,
                       .bytes = static_cast<size_t>(num_rows) * bytes});
  };
  append(layout.key_offset(layer, kv_head), layout.row_bytes());
  append(layout.value_offset(layer, kv_head), layout.row_bytes());
  if (!layout.has_scales()) return;
  append(layout.scale_offset(layer, kv_head), layout.token_scale_bytes());
}

}  // namespace tokenbutler
