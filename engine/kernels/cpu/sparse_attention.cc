#include "engine/kernels/sparse_attention.h"

#include "engine/kernels/decode_attention.h"

namespace tokenbutler {

size_t SparseAttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim) {
  return DecodeAttentionWorkspaceFloats(num_queries, num_heads, head_dim);
}

void SparseAttention(const SparseAttentionParams& p, ComputePool& pool) {
  pool.ParallelFor(static_cast<int>(p.queries.size()), [&](int query) {
    SparseAttentionParams one = p;
    one.queries = p.queries.subspan(query, 1);
    SparseAttentionPlain(one);
  });
}

}  // namespace tokenbutler
