#include "tools/train/sampled_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/counter_rng.h"

namespace tokenbutler {

std::vector<int> SampleRows(int num_tokens, int count, uint64_t seed, uint64_t sequence) {
  const int first = num_tokens / 2, last = num_tokens - 1;
  std::vector<int> others(static_cast<size_t>(std::max(0, last - first)));
  std::iota(others.begin(), others.end(), first);
  const int num_others = std::min(count - 1, static_cast<int>(others.size()));
  for (int i = 0; i < num_others; ++i) {
    const double share = UniformAt(seed, static_cast<uint32_t>(i), sequence);
    const size_t left = others.size() - static_cast<size_t>(i);
    std::swap(others[i], others[i + static_cast<size_t>(share * static_cast<double>(left))]);
  }
  others.resize(static_cast<size_t>(num_others));
  others.push_back(last);
  std::sort(others.begin(), others.end());
  return others;
}

}  // namespace tokenbutler
