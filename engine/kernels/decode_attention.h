#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Dense attention of single query rows (one per sequence) over their cached tokens:
//   out[h] = sum_t softmax_t(softmax_scale * q[h] . k[t, h / group_size]) * v[t, h / group_size]
// over t in [max(0, context_len - window), context_len).
struct DecodeAttentionParams {
  // One query row and the cache behind it.
  struct Query {
    const float* query = nullptr;  // [num_heads, head_dim], after RoPE
    // Base of each block of the sequence in token order; [layout.blocks_for(context_len)]. Blocks
    // that lie wholly before the window are not touched.
    const std::byte* const* blocks = nullptr;
    int context_len = 0;   // tokens, the query's own included; >= 1
    float* out = nullptr;  // [num_heads, head_dim]
    float* lse = nullptr;  // [num_heads] log-sum-exp of the scaled logits, or null
  };
  absl::Span<const Query> queries;
  KvLayout layout;  // head_dim <= 2048
  int layer = 0;
  int num_heads = 0;  // a multiple of layout.num_kv_heads
  int window = 0;     // tokens, the query's own included; 0: all
  float softmax_scale = 1;
  // [DecodeAttentionWorkspaceFloats(...)], 64-byte aligned; what it holds afterwards is
  // unspecified.
  float* workspace = nullptr;
};

// Floats of workspace that `num_queries` queries need at any context length.
size_t DecodeAttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim);

// Reads each K and V row once per group of query heads; logits, softmax and sums are float32.
// The context is cut into pieces that depend on its length alone and are merged in order, so a
// query's result is the same, bit for bit, whatever its neighbours and the number of threads are.
void DecodeAttention(const DecodeAttentionParams& params, ComputePool& pool);

// The specification: two passes, float64. Uses no workspace.
void DecodeAttentionPlain(const DecodeAttentionParams& params);

}  // namespace tokenbutler
