#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "engine/models/rope.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// The cached rows of one token in one layer and KV head.
struct KvRow {
  const KvLayout* layout;
  absl::Span<std::byte* const> blocks;  // in token order
  int layer, kv_head, token;

  std::byte* key() const { return block() + layout->key_offset(layer, kv_head) + row_offset(); }
  std::byte* value() const { return block() + layout->value_offset(layer, kv_head) + row_offset(); }

 private:
  std::byte* block() const { return blocks[token / layout->block_size]; }
  size_t row_offset() const { return token % layout->block_size * layout->row_bytes(); }
};

// A cached row as float32, exact, and back, rounded to nearest even. [head_dim]
void LoadRow(const std::byte* row, const KvLayout& layout, float* out);
void StoreRow(const float* values, const KvLayout& layout, std::byte* row);

// Rotates one head in place by a position, with cosines and then sines as Rope::Rotation gives
// them, or undoes that, the attention factor included. [head_dim]
void Rotate(const float* cos_sin, const Rope& rope, float* x);
void RotateBack(const float* cos_sin, const Rope& rope, float* x);

}  // namespace tokenbutler
