#pragma once

#include <cstddef>

#include "offload/kv_layout.h"

namespace tokenbutler {

// Rotary position embedding (arXiv 2104.09864) of one decode step's queries and keys, and the
// append of the rotated keys and the values to the KV cache. Rotation pairs element i with
// i + head_dim / 2 (Hugging Face's "rotate_half"):
//   out[i]     = x[i] * cos[i] - x[i + half] * sin[i]
//   out[i + h] = x[i + half] * cos[i] + x[i] * sin[i]
struct RopeAppendParams {
  // Where one row's token stands and goes.
  struct Row {
    const float* cos = nullptr;  // [head_dim / 2] of this row's position
    const float* sin = nullptr;  // [head_dim / 2]
    std::byte* block = nullptr;  // the KV cache block that holds the token
    int row_in_block = 0;        // position % block_size
  };
  const Row* rows = nullptr;  // [num_rows]
  // [num_rows, (num_heads + 2 * num_kv_heads) * head_dim]: a row is q, k, v. q and k are rotated
  // in place, so that a row starts with the query DecodeAttention wants; v is only read.
  float* qkv = nullptr;
  int num_rows = 0;
  int num_heads = 0;
  KvLayout layout;  // num_kv_heads and head_dim (even)
  int layer = 0;
};

// Keys and values are rounded to the cache's dtype as StoreKvRow does (kv_row.h).
void RopeAppend(const RopeAppendParams& params);
void RopeAppendPlain(const RopeAppendParams& params);  // the specification

}  // namespace tokenbutler
