#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/attention_mass.h"
#include "engine/kernels/cpu/cached_row.h"

namespace tokenbutler {

void AttentionMassPlain(const AttentionMassParams& p) {
  const KvLayout& kv = p.layout;
  const int num_tokens = p.first_position + p.num_rows;
  std::vector<double> added(num_tokens), logits(num_tokens);
  for (int i = 0; i < p.num_rows; ++i) {
    const int limit = p.first_position + i + 1;
    for (int h = 0; h < p.group_size; ++h) {
      const float* q = p.queries + i * p.stride + static_cast<size_t>(h) * kv.head_dim;
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int t = 0; t < limit; ++t) {
        const CachedRow key =
            CachedKey(kv, p.blocks[t / kv.block_size], p.layer, p.kv_head, t % kv.block_size);
        double dot = 0;
        for (int d = 0; d < kv.head_dim; ++d) dot += double{q[d]} * key[d];
        logits[t] = dot * p.softmax_scale;
        max = std::max(max, logits[t]);
      }
      for (int t = 0; t < limit; ++t) sum += std::exp(logits[t] - max);
      for (int t = 0; t < limit; ++t) added[t] += std::exp(logits[t] - max) / sum;
      p.lse[static_cast<size_t>(i) * p.group_size + h] = static_cast<float>(max + std::log(sum));
    }
  }
  for (int t = 0; t < num_tokens; ++t) p.mass[t] += static_cast<float>(added[t]);
}

}  // namespace tokenbutler
