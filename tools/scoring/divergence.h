#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tokenbutler {

// One next-token distribution that others are compared with.
class ReferenceDistribution {
 public:
  // `logits`: [vocab_size], finite, not empty.
  explicit ReferenceDistribution(absl::Span<const float> logits);

  // KL(this || other) = sum p (ln p - ln q), in nats, at least 0. REQUIRES: the same size.
  double KlDivergence(absl::Span<const float> other_logits) const;
  // The most likely token; the first of equals.
  int32_t top_token() const { return top_token_; }

 private:
  std::vector<double> probabilities_;
  std::vector<double> log_probabilities_;
  int32_t top_token_;
};

// Index of the largest; the first of equals.
int32_t TopToken(absl::Span<const float> logits);

// -ln of the probability of `token`.
double NegativeLogLikelihood(absl::Span<const float> logits, int32_t token);

}  // namespace tokenbutler
