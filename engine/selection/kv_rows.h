#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "engine/kernels/kv_row.h"
#include "engine/models/rope.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// The cached rows of one token in one layer and KV head.
struct KvRow {
  const KvLayout* layout;
  absl::Span<std::byte* const> blocks;  // in token order
  int layer, kv_head, token;

  // As float32. [head_dim]
  void LoadKey(float* out) const {
    LoadKvRows(KeyRowsOf(*layout, block(), layer, kv_head, row()), *layout, 1, out);
  }
  void LoadValue(float* out) const {
    LoadKvRows(ValueRowsOf(*layout, block(), layer, kv_head, row()), *layout, 1, out);
  }
  // Rounded to the cache's dtype.
  void Store(const float* key, const float* value) const {
    StoreKvRow(key, value, *layout, place());
  }
  // The same bits. REQUIRES: the same layout.
  void CopyFrom(const KvRow& other) const;

 private:
  std::byte* block() const { return blocks[token / layout->block_size]; }
  int row() const { return token % layout->block_size; }
  KvRowPlace place() const { return KvRowPlaceOf(*layout, block(), layer, kv_head, row()); }
};

// Rotates one head in place by a position, with cosines and then sines as Rope::Rotation gives
// them, or undoes that, the attention factor included. [head_dim]
void Rotate(const float* cos_sin, const Rope& rope, float* x);
void RotateBack(const float* cos_sin, const Rope& rope, float* x);

}  // namespace tokenbutler
