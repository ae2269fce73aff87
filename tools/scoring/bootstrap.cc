#include "tools/scoring/bootstrap.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tokenbutler {
namespace {

constexpr int kResamples = 10000;

// The interval of statistic(indices) over resampled indices of [0, n).
template <typename Statistic>
MeanInterval Bootstrap(size_t n, const Statistic& statistic) {
  std::vector<size_t> indices(n);
  std::iota(indices.begin(), indices.end(), size_t{0});
  MeanInterval interval{.mean = statistic(indices)};
  std::mt19937_64 random(1);
  std::vector<double> values(kResamples);
  for (double& value : values) {
    for (size_t& index : indices) index = random() % n;
    value = statistic(indices);
  }
  std::sort(values.begin(), values.end());
  interval.low = values[kResamples * 25 / 1000];
  interval.high = values[kResamples * 975 / 1000];
  return interval;
}

double SumAt(absl::Span<const double> values, const std::vector<size_t>& indices) {
  double sum = 0;
  for (const size_t index : indices) sum += values[index];
  return sum;
}

}  // namespace

MeanInterval BootstrapMean(absl::Span<const double> values) {
  return Bootstrap(values.size(), [&](const std::vector<size_t>& indices) {
    return SumAt(values, indices) / static_cast<double>(values.size());
  });
}

MeanInterval BootstrapDifference(absl::Span<const double> a, absl::Span<const double> b) {
  std::vector<double> differences(a.size());
  for (size_t i = 0; i < a.size(); ++i) differences[i] = a[i] - b[i];
  return BootstrapMean(differences);
}

MeanInterval BootstrapRatio(absl::Span<const double> a, absl::Span<const double> b) {
  return Bootstrap(a.size(), [&](const std::vector<size_t>& indices) {
    return SumAt(a, indices) / SumAt(b, indices);
  });
}

}  // namespace tokenbutler
