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

// Bytes of one token in one layer and KV head: its K row and its V row.
inline size_t TokenRowBytes(const KvLayout& layout) { return 2 * layout.row_bytes(); }

// A K row and a V row.
inline constexpr size_t kCopiesPerRow = 2;

// Appends the copies of `num_rows` consecutive tokens of one layer and KV head.
inline void AppendRowCopies(const KvLayout& layout, int layer, int kv_head, RowSource from,
                            RowTarget to, int num_rows, std::vector<RowCopy>* copies) {
  const size_t bytes = layout.row_bytes();
  for (const size_t offset :
       {layout.key_offset(layer, kv_head), layout.value_offset(layer, kv_head)}) {
    copies->push_back({.from = from.block + offset + static_cast<size_t>(from.row) * bytes,
                       .to = to.block + offset + static_cast<size_t>(to.row) * bytes,
                       .bytes = static_cast<size_t>(num_rows) * bytes});
  }
}

}  // namespace tokenbutler
