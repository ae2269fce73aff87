#include "engine/kernels/sparse_attention.h"

#include "engine/kernels/cpu/attention_tasks.h"

namespace tokenbutler {

size_t SparseAttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim) {
  return AttentionWorkspaceFloats(num_queries, num_heads, head_dim);
}

void SparseAttention(const SparseAttentionParams& p, ComputePool& pool) {
  const int num_kv_heads = p.layout.num_kv_heads;
  const int group_size = p.num_heads / num_kv_heads;
  const auto task = [&](int index) {
    const SparseAttentionParams::Query& query = p.queries[index / num_kv_heads];
    const int kv_head = index % num_kv_heads;
    const int first_head = kv_head * group_size;
    const size_t at = static_cast<size_t>(first_head) * p.layout.head_dim;
    const bool two_queries = query.first_query != nullptr && query.num_first_rows > 0;
    return AttentionTask{
        .piece = {.layout = &p.layout,
                  .layer = p.layer,
                  .kv_head = kv_head,
                  .blocks = query.blocks,
                  .rows = query.rows[kv_head],
                  .begin = 0,
                  .end = query.num_rows[kv_head],
                  .queries = query.query + at,
                  .first_queries = two_queries ? query.first_query + at : nullptr,
                  .num_first = two_queries ? query.num_first_rows : 0,
                  .group_size = group_size,
                  .softmax_scale = p.softmax_scale,
                  .logits = query.weights == nullptr ? nullptr : query.weights + first_head},
        .out = query.out + at,
        .lse = query.lse == nullptr ? nullptr : query.lse + first_head,
        .want_weights = query.weights != nullptr};
  };
  RunAttentionTasks(static_cast<int>(p.queries.size()) * num_kv_heads, task, p.workspace, pool);
}

}  // namespace tokenbutler
