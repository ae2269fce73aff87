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
//
// int8 rows have a float32 scale each: element i is scale * row[i]. Those of a layer and KV head
// follow its rows, the two of a token side by side, so that a token that is gathered alone costs
// one cache line for both; rows and scales begin on cache lines of their own:
//
//   { K rows, V rows, scales: [block_size]{ of the K row, of the V row } }
struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_size = 128;  // tokens
  DType dtype = DType::kBF16;

  static constexpr size_t kScalesPerToken = 2;  // floats from a row's scale to the next token's

  bool has_scales() const { return dtype == DType::kI8; }
  size_t row_bytes() const { return static_cast<size_t>(head_dim) * DTypeBytes(dtype); }
  // Of one token in one layer and KV head: its K row, its V row and their scales.
  size_t token_row_bytes() const { return 2 * row_bytes() + token_scale_bytes(); }
  size_t token_scale_bytes() const { return has_scales() ? kScalesPerToken * sizeof(float) : 0; }
  // Of one token in all layers and KV heads.
  size_t token_bytes() const {
    return static_cast<size_t>(num_layers) * static_cast<size_t>(num_kv_heads) * token_row_bytes();
  }
  size_t head_bytes() const {
    const size_t end = scales_after_keys() + static_cast<size_t>(block_size) * token_scale_bytes();
    return has_scales() ? RoundUpToLine(end) : end;
  }
  size_t layer_bytes() const { return static_cast<size_t>(num_kv_heads) * head_bytes(); }
  size_t block_bytes() const { return static_cast<size_t>(num_layers) * layer_bytes(); }

  // Byte offset inside a block of the K (V) rows of one layer and KV head.
  size_t key_offset(int layer, int kv_head) const {
    return static_cast<size_t>(layer) * layer_bytes() + static_cast<size_t>(kv_head) * head_bytes();
  }
  size_t value_offset(int layer, int kv_head) const {
    return key_offset(layer, kv_head) + static_cast<size_t>(block_size) * row_bytes();
  }
  // Of the first token's scales. REQUIRES: has_scales().
  size_t scale_offset(int layer, int kv_head) const {
    return key_offset(layer, kv_head) + scales_after_keys();
  }
  int blocks_for(int num_tokens) const { return (num_tokens + block_size - 1) / block_size; }

 private:
  static size_t RoundUpToLine(size_t bytes) { return (bytes + 63) / 64 * 64; }
  // Bytes from a head's first K row to the end of its rows: where the scales are, if it has any.
  size_t scales_after_keys() const {
    const size_t rows = 2 * static_cast<size_t>(block_size) * row_bytes();
    return has_scales() ? RoundUpToLine(rows) : rows;
  }
};

}  // namespace tokenbutler
