#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace tokenbutler {

// How one block of the KV cache is laid out in memory. A block holds `block_size` consecutive
// tokens of one sequence; inside it, per layer and per KV head, the K rows and then the V rows:
//
//   [num_layers][num_kv_heads]{ K: [block_size][head_dim], V: [block_size][head_dim] }
//
// Separate K and V rows gather at the memory's own speed; one interleaved row per token made
// dense attention twice as slow (docs/architecture.md).
struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_size = 128;  // tokens
  DType dtype = DType::kBF16;

  size_t row_bytes() const { return static_cast<size_t>(head_dim) * DTypeBytes(dtype); }
  size_t head_bytes() const { return 2 * static_cast<size_t>(block_size) * row_bytes(); }
  size_t layer_bytes() const { return static_cast<size_t>(num_kv_heads) * head_bytes(); }
  size_t block_bytes() const { return static_cast<size_t>(num_layers) * layer_bytes(); }
  size_t token_bytes() const { return block_bytes() / static_cast<size_t>(block_size); }

  // Byte offset inside a block of the K (V) rows of one layer and KV head.
  size_t key_offset(int layer, int kv_head) const {
    return static_cast<size_t>(layer) * layer_bytes() + static_cast<size_t>(kv_head) * head_bytes();
  }
  size_t value_offset(int layer, int kv_head) const {
    return key_offset(layer, kv_head) + static_cast<size_t>(block_size) * row_bytes();
  }
  int blocks_for(int num_tokens) const { return (num_tokens + block_size - 1) / block_size; }
};

}  // namespace tokenbutler
