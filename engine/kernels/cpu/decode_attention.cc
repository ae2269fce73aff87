#include "engine/kernels/decode_attention.h"

#include <algorithm>

#include "engine/kernels/cpu/attention_tasks.h"

namespace tokenbutler {

size_t DecodeAttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim) {
  return AttentionWorkspaceFloats(num_queries, num_heads, head_dim);
}

void DecodeAttention(const DecodeAttentionParams& p, ComputePool& pool) {
  const int num_kv_heads = p.layout.num_kv_heads;
  const int group_size = p.num_heads / num_kv_heads;
  const auto task = [&](int index) {
    const DecodeAttentionParams::Query& query = p.queries[index / num_kv_heads];
    const int kv_head = index % num_kv_heads;
    const int first_head = kv_head * group_size;
    const size_t at = static_cast<size_t>(first_head) * p.layout.head_dim;
    return AttentionTask{
        .piece = {.layout = &p.layout,
                  .layer = p.layer,
                  .kv_head = kv_head,
                  .blocks = query.blocks,
                  .begin = p.window == 0 ? 0 : std::max(0, query.context_len - p.window),
                  .end = query.context_len,
                  .queries = query.query + at,
                  .group_size = group_size,
                  .softmax_scale = p.softmax_scale},
        .out = query.out + at,
        .lse = query.lse == nullptr ? nullptr : query.lse + first_head};
  };
  RunAttentionTasks(static_cast<int>(p.queries.size()) * num_kv_heads, task, p.workspace, pool);
}

}  // namespace tokenbutler
