#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/cached_row.h"
#include "engine/kernels/decode_attention.h"

namespace tokenbutler {
namespace {

void AttendHead(const DecodeAttentionParams& p, const DecodeAttentionParams::Query& query,
                int head) {
  const KvLayout& kv = p.layout;
  const int kv_head = head / (p.num_heads / kv.num_kv_heads);
  const int begin = p.window == 0 ? 0 : std::max(0, query.context_len - p.window);
  const float* q = query.query + static_cast<size_t>(head) * kv.head_dim;
  float* out = query.out + static_cast<size_t>(head) * kv.head_dim;

  std::vector<double> logits;
  double max = -std::numeric_limits<double>::infinity();
  for (int t = begin; t < query.context_len; ++t) {
    const CachedRow key =
        CachedKey(kv, query.blocks[t / kv.block_size], p.layer, kv_head, t % kv.block_size);
    double dot = 0;
    for (int d = 0; d < kv.head_dim; ++d) dot += double{q[d]} * key[d];
    logits.push_back(dot * p.softmax_scale);
    max = std::max(max, logits.back());
  }

  double sum = 0;
  std::vector<double> acc(kv.head_dim, 0.0);
  for (int t = begin; t < query.context_len; ++t) {
    const CachedRow value =
        CachedValue(kv, query.blocks[t / kv.block_size], p.layer, kv_head, t % kv.block_size);
    const double weight = std::exp(logits[t - begin] - max);
    sum += weight;
    for (int d = 0; d < kv.head_dim; ++d) acc[d] += weight * value[d];
  }
  for (int d = 0; d < kv.head_dim; ++d) out[d] = static_cast<float>(acc[d] / sum);
  if (query.lse != nullptr) query.lse[head] = static_cast<float>(max + std::log(sum));
}

}  // namespace

void DecodeAttentionPlain(const DecodeAttentionParams& p) {
  for (const DecodeAttentionParams::Query& query : p.queries) {
    for (int head = 0; head < p.num_heads; ++head) AttendHead(p, query, head);
  }
}

}  // namespace tokenbutler
