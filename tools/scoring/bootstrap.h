#pragma once

#include "absl/types/span.h"

namespace tokenbutler {

// A mean and where it may lie.
struct MeanInterval {
  double mean = 0, low = 0, high = 0;

  bool holds(double value) const { return low <= value && value <= high; }
};

// 95 % percentile bootstrap intervals: 10,000 resamples, the same ones in every run, so that values
// of the same length are resampled together. REQUIRES, of all: not empty.

MeanInterval BootstrapMean(absl::Span<const double> values);
// Of a[i] - b[i]: what varies from one pair to the next and is common to both does not count.
MeanInterval BootstrapDifference(absl::Span<const double> a, absl::Span<const double> b);
// Sum of a over sum of b, pairs resampled. REQUIRES: b[i] > 0.
MeanInterval BootstrapRatio(absl::Span<const double> a, absl::Span<const double> b);

}  // namespace tokenbutler
