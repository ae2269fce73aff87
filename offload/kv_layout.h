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
// In the host tier blocks lie in groups: what `group_blocks` neighbouring blocks have of one layer
// and KV head (a *lane* of each) lies one after the other,
//
//   [num_layers][num_kv_heads][group_blocks]{ lane: K rows, V rows }
//
// so that an attention head, which reads a little of every block, finds it in few memory pages:
// gathering rows takes a quarter less time than from blocks of one piece (docs/adr/0016). A block's
// address is that of its first lane; all its offsets below count from there.
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
  // Blocks of a group. 1: every block is one piece of memory. More REQUIRE: head_bytes() is a
  // multiple of 64.
  int group_blocks = 1;

  // What group_blocks is where nothing speaks against it: rows gather no faster from larger groups.
  static constexpr int kGroupBlocks = 16;
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
  // Of a lane: the rows of one layer and KV head.
  size_t head_bytes() const {
    const size_t end = scales_after_keys() + static_cast<size_t>(block_size) * token_scale_bytes();
    return has_scales() ? RoundUpToLine(end) : end;
  }
  size_t layer_bytes() const { return static_cast<size_t>(num_kv_heads) * head_bytes(); }
  size_t block_bytes() const { return static_cast<size_t>(num_layers) * layer_bytes(); }
  int num_lanes() const { return num_layers * num_kv_heads; }
  // From a block's lane to its next one, which is that of the next KV head, or layer.
  size_t lane_stride() const { return static_cast<size_t>(group_blocks) * head_bytes(); }

  // From the first byte of a memory full of blocks to that of block `index`; 64-byte aligned.
  size_t block_offset(size_t index) const {
    const auto group = static_cast<size_t>(group_blocks);
    return index / group * group_bytes() + index % group * head_bytes();
  }
  // Bytes of a memory of `count` blocks. The last group counts as a whole.
  size_t blocks_bytes(size_t count) const {
    const auto group = static_cast<size_t>(group_blocks);
    return (count + group - 1) / group * group_bytes();
  }

  // Byte offset from a block's first byte of the K (V) rows of one layer and KV head.
  size_t key_offset(int layer, int kv_head) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(num_kv_heads) +
            static_cast<size_t>(kv_head)) *
           lane_stride();
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
  size_t group_bytes() const {
    return RoundUpToLine(static_cast<size_t>(group_blocks) * block_bytes());
  }
  static size_t RoundUpToLine(size_t bytes) { return (bytes + 63) / 64 * 64; }
  // Bytes from a head's first K row to the end of its rows: where the scales are, if it has any.
  size_t scales_after_keys() const {
    const size_t rows = 2 * static_cast<size_t>(block_size) * row_bytes();
    return has_scales() ? RoundUpToLine(rows) : rows;
  }
};

}  // namespace tokenbutler
