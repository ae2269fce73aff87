#include "tools/scoring/divergence.h"

#include <algorithm>
#include <cmath>

namespace tokenbutler {
namespace {

double LogSumExp(absl::Span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

}  // namespace

ReferenceDistribution::ReferenceDistribution(absl::Span<const float> logits)
    : probabilities_(logits.size()),
      log_probabilities_(logits.size()),
      top_token_(TopToken(logits)) {
  const double lse = LogSumExp(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    log_probabilities_[i] = logits[i] - lse;
    probabilities_[i] = std::exp(log_probabilities_[i]);
  }
}

double ReferenceDistribution::KlDivergence(absl::Span<const float> other_logits) const {
  const double lse = LogSumExp(other_logits);
  double sum = 0;
  for (size_t i = 0; i < probabilities_.size(); ++i) {
    sum += probabilities_[i] * (log_probabilities_[i] - (other_logits[i] - lse));
  }
  return std::max(sum, 0.0);  // rounding can make it a little less
}

int32_t TopToken(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double NegativeLogLikelihood(absl::Span<const float> logits, int32_t token) {
  return LogSumExp(logits) - logits[token];
}

}  // namespace tokenbutler
