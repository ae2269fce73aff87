#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Attention of single query rows (one per sequence) over chosen tokens only: for query head h of
// KV head j, over the rows R = rows[j]
//   out[h] = sum_{r in R} softmax_r(softmax_scale * q[h] . k[r, j]) * v[r, j]
struct SparseAttentionParams {
  // One query row and the tokens it attends to. Rows may lie in the host tier or in the device
  // tier: any blocks of `layout`.
  struct Query {
    const float* query = nullptr;              // [num_heads, head_dim], after RoPE
    const std::byte* const* blocks = nullptr;  // bases of blocks with `layout`
    // [num_kv_heads] lists of row numbers in ascending token order, none twice: row r is row
    // r % block_size of blocks[r / block_size].
    const int32_t* const* rows = nullptr;
    const int32_t* num_rows = nullptr;  // [num_kv_heads], each >= 1
    // Rows [0, num_first_rows) of every list are scored with this query instead (null: with
    // `query`): streaming_llm rotates by another position there.
    const float* first_query = nullptr;  // [num_heads, head_dim]
    int num_first_rows = 0;
    float* out = nullptr;  // [num_heads, head_dim]
    float* lse = nullptr;  // [num_heads] log-sum-exp of the scaled logits, or null
    // Softmax weights, or null: [num_heads] arrays of num_rows[kv_head] floats, in the order of
    // the rows.
    float* const* weights = nullptr;
  };
  absl::Span<const Query> queries;
  KvLayout layout;  // head_dim <= 2048
  int layer = 0;
  int num_heads = 0;  // a multiple of layout.num_kv_heads
  float softmax_scale = 1;
  // [SparseAttentionWorkspaceFloats(...)], 64-byte aligned; what it holds afterwards is
  // unspecified.
  float* workspace = nullptr;
};

// Floats of workspace that `num_queries` queries need for lists of any length.
size_t SparseAttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim);

// Reads each K and V row once per group of query heads; logits, softmax and sums are float32.
// Lists are cut into pieces and tiles by position in the list alone and merged in order, so a
// query's result is the same, bit for bit, whatever its neighbours and the number of threads are
// and wherever the same rows lie. Over all tokens of a context it gives the bits of DecodeAttention
// without a window, if block_size is a multiple of 64.
void SparseAttention(const SparseAttentionParams& params, ComputePool& pool);

// The specification: two passes, float64. Uses no workspace.
void SparseAttentionPlain(const SparseAttentionParams& params);

}  // namespace tokenbutler
