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

// A mean and where it may lie.
struct MeanInterval {
  double mean = 0, low = 0, high = 0;
};

// Mean with its 95 % percentile bootstrap interval over the values: 10,000 resamples, the same ones
// in every run. REQUIRES: not empty.
MeanInterval BootstrapMean(absl::Span<const double> values);

}  // namespace tokenbutler
