#pragma once

#include <limits>

namespace tokenbutler {

// Softmax-weighted sum of value rows over the tokens seen so far, without having seen all
// (arXiv 1805.02867; the state of FlashAttention). With logits s_t and value rows v_t:
//   max = max_t s_t,  sum = sum_t exp(s_t - max),  acc[d] = sum_t exp(s_t - max) * v_t[d]
// The attention output is acc / sum. Every attention kernel ends in this state, and states of
// disjoint token sets merge, so that a context can be split over threads, tiers or selections.
struct OnlineSoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;         // 0: no token seen
  float* acc = nullptr;  // [head_dim] float32, not owned

  // No token seen: max -inf, sum 0, acc 0.
  void Reset(int head_dim);

  // Adds one token: its logit and its value row [head_dim]. The specification of what kernels do
  // for many tokens at once. A logit of -inf adds nothing.
  void Add(float logit, const float* value, int head_dim);

  // Adds the tokens of `other`, which are none of ours.
  void Merge(const OnlineSoftmaxState& other, int head_dim);

  // out[d] = acc[d] / sum; zeros when no token was seen. `out` may be acc.
  void Finish(float* out, int head_dim) const;

  // log of sum_t exp(s_t); -inf when no token was seen.
  float lse() const;
};

}  // namespace tokenbutler
