#pragma once

#include <cstddef>

#include "offload/kv_layout.h"

namespace tokenbutler {

// Consecutive key rows, or value rows, of one block, layer and KV head.
struct KvRows {
  const std::byte* data = nullptr;  // [num_rows, head_dim] of the layout's dtype
  // Row i's scale is scales[i * KvLayout::kScalesPerToken]; null: the rows have none.
  const float* scales = nullptr;
};

// The rows from `first` on of a block that begins at `block`.
inline KvRows KeyRowsOf(const KvLayout& layout, const std::byte* block, int layer, int kv_head,
                        int first = 0) {
  const size_t row = static_cast<size_t>(first);
  KvRows rows{.data = block + layout.key_offset(layer, kv_head) + row * layout.row_bytes()};
  if (layout.has_scales()) {
    rows.scales = reinterpret_cast<const float*>(block + layout.scale_offset(layer, kv_head)) +
                  row * KvLayout::kScalesPerToken;
  }
  return rows;
}
inline KvRows ValueRowsOf(const KvLayout& layout, const std::byte* block, int layer, int kv_head,
                          int first = 0) {
  KvRows rows = KeyRowsOf(layout, block, layer, kv_head, first);
  rows.data += static_cast<size_t>(layout.block_size) * layout.row_bytes();
  if (rows.scales != nullptr) ++rows.scales;  // the key's is the other of the pair
  return rows;
}

// out[i] = the rows as float32. bf16, fp16 and float32 widen exactly; int8 is code * scale.
// [num_rows, head_dim]
void LoadKvRows(const KvRows& rows, const KvLayout& layout, int num_rows, float* out);
void LoadKvRowsPlain(const KvRows& rows, const KvLayout& layout, int num_rows, float* out);

// Where one token's rows of one layer and KV head go.
struct KvRowPlace {
  std::byte* key = nullptr;    // [head_dim] of the layout's dtype
  std::byte* value = nullptr;  // the same
  float* scales = nullptr;     // [2]: of key and value; null: the rows have none
};
inline KvRowPlace KvRowPlaceOf(const KvLayout& layout, std::byte* block, int layer, int kv_head,
                               int row) {
  const size_t at = static_cast<size_t>(row) * layout.row_bytes();
  KvRowPlace place{.key = block + layout.key_offset(layer, kv_head) + at,
                   .value = block + layout.value_offset(layer, kv_head) + at};
  if (layout.has_scales()) {
    place.scales = reinterpret_cast<float*>(block + layout.scale_offset(layer, kv_head)) +
                   static_cast<size_t>(row) * KvLayout::kScalesPerToken;
  }
  return place;
}

// Writes both rows of one token; `key` and `value` are [head_dim]. What is rounded, by dtype:
//   bf16, fp16  each element to nearest even; what is too large for fp16 becomes infinity
//   int8        symmetric: scale = max |x| / 127, code = x * (127 / max |x|) to nearest even. A row
//               whose largest element is below kLeastInt8Max is stored as zeros, scale 0; one with
//               an element that is not finite has the scale NaN, so that it reads as NaN throughout
// Vectorised and plain version give the same bits (but for NaN's payload).
inline constexpr float kLeastInt8Max = 1e-30f;  // 127 / max |x| stays finite
void StoreKvRow(const float* key, const float* value, const KvLayout& layout,
                const KvRowPlace& place);
void StoreKvRowPlain(const float* key, const float* value, const KvLayout& layout,
                     const KvRowPlace& place);

}  // namespace tokenbutler
