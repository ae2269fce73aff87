#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/cached_row.h"
#include "engine/kernels/sparse_attention.h"

namespace tokenbutler {
namespace {

void AttendHead(const SparseAttentionParams& p, const SparseAttentionParams::Query& query,
                int head) {
  const KvLayout& kv = p.layout;
  const int kv_head = head / (p.num_heads / kv.num_kv_heads);
  const int num_rows = query.num_rows[kv_head];
  const int32_t* rows = query.rows[kv_head];
  const size_t at = static_cast<size_t>(head) * kv.head_dim;

  std::vector<double> weights(num_rows);
  double max = -std::numeric_limits<double>::infinity();
  for (int i = 0; i < num_rows; ++i) {
    const bool first = query.first_query != nullptr && i < query.num_first_rows;
    const float* q = (first ? query.first_query : query.query) + at;
    const CachedRow key = CachedKey(kv, query.blocks[rows[i] / kv.block_size], p.layer, kv_head,
                                    rows[i] % kv.block_size);
    double dot = 0;
    for (int d = 0; d < kv.head_dim; ++d) dot += double{q[d]} * key[d];
    weights[i] = dot * p.softmax_scale;
    max = std::max(max, weights[i]);
  }

  double sum = 0;
  std::vector<double> acc(kv.head_dim, 0.0);
  for (int i = 0; i < num_rows; ++i) {
    const CachedRow value = CachedValue(kv, query.blocks[rows[i] / kv.block_size], p.layer, kv_head,
                                        rows[i] % kv.block_size);
    weights[i] = std::exp(weights[i] - max);
    sum += weights[i];
    for (int d = 0; d < kv.head_dim; ++d) acc[d] += weights[i] * value[d];
  }
  for (int d = 0; d < kv.head_dim; ++d) query.out[at + d] = static_cast<float>(acc[d] / sum);
  if (query.lse != nullptr) query.lse[head] = static_cast<float>(max + std::log(sum));
  if (query.weights == nullptr) return;
  for (int i = 0; i < num_rows; ++i) {
    query.weights[head][i] = static_cast<float>(weights[i] / sum);
  }
}

}  // namespace

void SparseAttentionPlain(const SparseAttentionParams& p) {
  for (const SparseAttentionParams::Query& query : p.queries) {
    for (int head = 0; head < p.num_heads; ++head) AttendHead(p, query, head);
  }
}

}  // namespace tokenbutler
