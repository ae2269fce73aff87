#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/cached_row.h"
#include "engine/kernels/key_scores.h"

namespace tokenbutler {

void KeyScoresPlain(const KeyScoresParams& p) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  const KvLayout& kv = p.layout;
  const int num_tokens = p.end - p.begin;
  std::vector<double> scores(num_tokens, kMinusInfinity);
  for (int h = 0; h < p.group_size; ++h) {
    const float* q = p.query + static_cast<size_t>(h) * kv.head_dim;
    std::vector<double> logits(num_tokens);
    double max = kMinusInfinity;
    for (int i = 0; i < num_tokens; ++i) {
      const int t = p.tokens == nullptr ? p.begin + i : p.tokens[p.begin + i];
      const CachedRow key =
          CachedKey(kv, p.blocks[t / kv.block_size], p.layer, p.kv_head, t % kv.block_size);
      double dot = 0;
      for (int d = 0; d < kv.head_dim; ++d) dot += double{q[d]} * key[d];
      logits[i] = dot * p.softmax_scale;
      max = std::max(max, logits[i]);
      scores[i] = std::max(scores[i], logits[i] - (p.lse == nullptr ? 0.0 : p.lse[h]));
    }
    if (p.lse_out == nullptr) continue;
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - max);
    p.lse_out[h] = static_cast<float>(num_tokens == 0 ? kMinusInfinity : max + std::log(sum));
  }
  for (int i = 0; i < num_tokens; ++i) p.scores[i] = static_cast<float>(scores[i]);
}

}  // namespace tokenbutler
