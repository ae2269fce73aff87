#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/token_sink.h"

namespace tokenbutler {

// Functions on one position's logits [vocab_size] float32. -Inf means probability 0.

struct LogitPeak {
  int32_t token_id = 0;  // the lowest id among equals
  float value = 0;       // -Inf when every logit is
};

// The largest logit, in one pass. INTERNAL naming the position of a NaN or +Inf.
// REQUIRES: not empty.
absl::StatusOr<LogitPeak> FindPeak(absl::Span<const float> logits);

// log(sum(exp(logits))). REQUIRES: no logit is NaN or +Inf; `max`, the largest, is finite.
float LogSumExp(absl::Span<const float> logits, float max);

// Log-probability and rank of `token_id` under log-softmax(logits). The rank is one more than the
// number of tokens that are strictly more likely. REQUIRES: 0 <= token_id < logits.size().
TokenLogprob LogprobOf(absl::Span<const float> logits, float lse, int32_t token_id);

// Fills `top` with the min(k, vocab_size) most likely tokens, best first, the lower id first among
// equals; ranks run from 1. Allocates nothing once `top` has capacity k.
void TopLogprobs(absl::Span<const float> logits, float lse, int k, std::vector<TokenLogprob>* top);

// The whole answer for a position whose token is known (prompt log-probabilities); `top` as
// LogprobParams::top. INTERNAL when a logit is NaN or +Inf or none is finite.
// REQUIRES: 0 <= token_id < logits.size().
absl::StatusOr<PositionLogprobs> ComputeLogprobs(absl::Span<const float> logits, int32_t token_id,
                                                 int top);

}  // namespace tokenbutler
