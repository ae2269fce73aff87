#pragma once

#include <cstddef>

#include "base/buffer.h"
#include "base/compute_pool.h"
#include "base/dtype.h"
#include "engine/token_rows.h"

namespace tokenbutler {

// Keys and values of one layer, copied out of the blocks of the KV cache into the layout in which
// oneDNN's small matrix products (brgemm) read their right-hand matrix: as it is for float32, rows
// in pairs for bf16. In blocks of kTokens tokens, which begin at multiples of kTokens so that a
// token is in the same place of the same block whatever the prefill's chunks are. Tokens past the
// end and dimensions past head_dim are zeros.
//   block of keys    float32 [padded_dim, kTokens], bf16 [padded_dim / 2, kTokens, 2]
//   block of values  float32 [kTokens, padded_dim], bf16 [kTokens / 2, padded_dim, 2]
// T: float or BF16. Engine thread only.
template <typename T>
class PackedKv {
 public:
  static constexpr int kTokens = 256;  // a power of two
  static constexpr int kDimAlign = 16;

  // Copies tokens [first, end) of the chunk's sequence, and those before `first` in its block.
  // Memory only grows. Throws std::bad_alloc.
  void Gather(const TokenRows& rows, int layer, int first, int end, ComputePool& pool);

  int padded_dim() const { return padded_dim_; }
  // Token t is token t % kTokens of block t / kTokens.
  const T* keys(int kv_head, int block) const {
    return keys_.as<T>() + Offset(kv_head, block - first_block_);
  }
  const T* values(int kv_head, int block) const {
    return values_.as<T>() + Offset(kv_head, block - first_block_);
  }

 private:
  size_t Offset(int kv_head, int index) const {
    return (static_cast<size_t>(kv_head) * num_blocks_ + index) * kTokens * padded_dim_;
  }
  void PackBlock(const TokenRows& rows, int layer, int kv_head, int index, int end);

  Buffer keys_, values_;  // [num_kv_heads, num_blocks_] blocks
  int first_block_ = 0;
  int num_blocks_ = 0;
  int padded_dim_ = 0;
};

extern template class PackedKv<float>;
extern template class PackedKv<BF16>;

}  // namespace tokenbutler
