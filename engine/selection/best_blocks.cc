#include "engine/selection/best_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fast_exp.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;  // behind TopK's indices

}  // namespace

void BestBlocks::Reserve(int num_kv_heads, int max_blocks, int max_found) {
  heads_.resize(static_cast<size_t>(num_kv_heads));
  for (std::vector<int32_t>& kept : heads_) {
    kept.reserve(static_cast<size_t>(max_blocks) + kTopKScratch);
  }
  mass_.reserve(static_cast<size_t>(max_blocks));
  weights_.reserve(static_cast<size_t>(max_found));
}

void BestBlocks::Rank(const TokenSelection& found, int block_size, float fraction, int begin,
                      int end, int count) {
  const int first = begin / block_size;
  const int num_blocks = std::max(0, end / block_size - first);
  const int wanted = static_cast<int>(std::ceil(static_cast<float>(num_blocks) * fraction));
  // The first block and the last may be outside of the range but for one token.
  const int enough = (count + block_size - 1) / block_size + 2;
  const int num_kept = std::min(num_blocks, std::max(wanted, enough));
  has_ranking_ = true;
  known_blocks_ = first + num_blocks;
  heads_.resize(found.counts.size());
  mass_.resize(static_cast<size_t>(num_blocks));
  for (size_t h = 0; h < heads_.size(); ++h) {
    const absl::Span<const int32_t> tokens = found.tokens_of(static_cast<int>(h));
    const absl::Span<const float> scores = found.scores_of(static_cast<int>(h));
    float highest = -std::numeric_limits<float>::infinity();
    for (const float score : scores) highest = std::max(highest, score);
    weights_.resize(scores.size());
    for (size_t i = 0; i < scores.size(); ++i) weights_[i] = FastExp(scores[i] - highest);
    std::fill(mass_.begin(), mass_.end(), 0.0f);
    for (size_t i = 0; i < tokens.size() && tokens[i] < known_blocks_ * block_size; ++i) {
      mass_[tokens[i] / block_size - first] += weights_[i];
    }
    std::vector<int32_t>& kept = heads_[h];
    kept.resize(static_cast<size_t>(num_kept) + kTopKScratch);
    kept.resize(static_cast<size_t>(TopK(mass_.data(), num_blocks, num_kept, kept.data())));
    for (int32_t& block : kept) block += first;
  }
}

void BestBlocks::AddUpTo(int last_block) {
  for (; known_blocks_ < last_block; ++known_blocks_) {
    for (std::vector<int32_t>& kept : heads_) kept.push_back(known_blocks_);
  }
}

}  // namespace tokenbutler
