#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/token_sink.h"

namespace tokenbutler {

// log(sum(exp(logits))). -Inf entries count as probability 0.
// INTERNAL when a logit is NaN or +Inf, or when none is finite; names the position.
absl::Status CheckedLogSumExp(absl::Span<const float> logits, float* lse);

// Log-probability and rank of `token_id` under log-softmax(logits). The rank is one more than the
// number of tokens that are strictly more likely. REQUIRES: 0 <= token_id < logits.size().
TokenLogprob LogprobOf(absl::Span<const float> logits, float lse, int32_t token_id);

// Fills `top` with the min(k, vocab_size) most likely tokens, best first, the lower id first among
// equals; ranks run from 1. Allocates nothing once `top` has capacity k.
void TopLogprobs(absl::Span<const float> logits, float lse, int k, std::vector<TokenLogprob>* top);

// The three together, for a position whose token is known (prompt log-probabilities).
// `logits` [vocab_size]; `top` as LogprobParams::top. Errors as CheckedLogSumExp.
absl::Status ComputeLogprobs(absl::Span<const float> logits, int32_t token_id, int top,
                             PositionLogprobs* out);

}  // namespace tokenbutler
