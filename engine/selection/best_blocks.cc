#include "engine/selection/best_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/fast_exp.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;  // behind TopK's indices
constexpr size_t kLanes = 16;     // that compilers keep in vectors

// -Infinity when there is none. NaN is never it.
float Largest(absl::Span<const float> scores) {
  std::array<float, kLanes> largest;
  largest.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float score = scores[i + lane];
      largest[lane] = score > largest[lane] ? score : largest[lane];
    }
  }
  for (; i < scores.size(); ++i) largest[0] = scores[i] > largest[0] ? scores[i] : largest[0];
  return *std::max_element(largest.begin(), largest.end());
}

// Adds the attention mass of tokens before `end`, ascending, to that of their blocks. Scores are
// logs of weights but for a constant.
void AddMass(absl::Span<const int32_t> tokens, absl::Span<const float> scores, int end,
             int block_size, float* mass) {
  const size_t num_tokens = std::lower_bound(tokens.begin(), tokens.end(), end) - tokens.begin();
  const float largest = Largest(scores);
  const auto divisor = static_cast<unsigned>(block_size);
  const int shift = std::has_single_bit(divisor) ? std::countr_zero(divisor) : -1;
  for (size_t i = 0; i < num_tokens; i += kLanes) {
    const size_t count = std::min(kLanes, num_tokens - i);
    std::array<float, kLanes> weights = {};
    std::copy_n(scores.begin() + i, count, weights.begin());
    for (float& weight : weights) weight = FastExp(weight - largest);
    for (size_t lane = 0; lane < count; ++lane) {
      const auto token = static_cast<unsigned>(tokens[i + lane]);
      mass[shift >= 0 ? token >> shift : token / divisor] += weights[lane];
    }
  }
}

}  // namespace

int64_t BestBlocks::MostBytes(int num_layers, int num_kv_heads, int max_blocks) {
  const int64_t list = (int64_t{max_blocks} + kTopKScratch) * int64_t{sizeof(int32_t)};
  const int64_t masses = int64_t{max_blocks} * int64_t{sizeof(float)};
  return num_kv_heads * (num_layers * list + masses);
}

void BestBlocks::Reserve(int num_kv_heads, int max_blocks, Masses* masses) {
  masses->resize(static_cast<size_t>(num_kv_heads));
  for (std::vector<float>& mass : *masses) mass.reserve(static_cast<size_t>(max_blocks));
}

void BestBlocks::Reserve(int num_kv_heads, int max_blocks) {
  heads_.resize(static_cast<size_t>(num_kv_heads));
  for (std::vector<int32_t>& kept : heads_) {
    kept.reserve(static_cast<size_t>(max_blocks) + kTopKScratch);
  }
}

void BestBlocks::Rank(const TokenSelection& found, int block_size, float fraction, int begin,
                      int end, int count, Masses* masses, ComputePool& pool) {
  const int first = begin / block_size;
  const int num_blocks = std::max(0, end / block_size - first);
  const int wanted = static_cast<int>(std::ceil(static_cast<float>(num_blocks) * fraction));
  // The first block and the last may be outside of the range but for one token.
  const int enough = (count + block_size - 1) / block_size + 2;
  const int num_kept = std::min(num_blocks, std::max(wanted, enough));
  has_ranking_ = true;
  known_blocks_ = first + num_blocks;
  heads_.resize(found.counts.size());
  masses->resize(found.counts.size());
  pool.ParallelFor(static_cast<int>(heads_.size()), [&](int h) {
    std::vector<float>& mass = (*masses)[h];
    mass.assign(static_cast<size_t>(known_blocks_), 0.0f);
    AddMass(found.tokens_of(h), found.scores_of(h), known_blocks_ * block_size, block_size,
            mass.data());
    std::vector<int32_t>& kept = heads_[h];
    kept.resize(static_cast<size_t>(num_kept) + kTopKScratch);
    kept.resize(static_cast<size_t>(TopK(mass.data() + first, num_blocks, num_kept, kept.data())));
    for (int32_t& block : kept) block += first;
  });
}

void BestBlocks::AddUpTo(int last_block) {
  for (; known_blocks_ < last_block; ++known_blocks_) {
    for (std::vector<int32_t>& kept : heads_) kept.push_back(known_blocks_);
  }
}

}  // namespace tokenbutler
