#include "engine/selection/important_tokens.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;  // behind TopK's indices

}  // namespace

void ImportantTokens::Reserve(int count) {
  const size_t size = static_cast<size_t>(count);
  order_.reserve(size + kTopKScratch);
  chosen_.reserve(size);
  chosen_scores_.reserve(size);
  taken_.reserve(size);
}

ImportantTokens::Choice ImportantTokens::Choose(const AttentionParams& params,
                                                absl::Span<const int32_t> tokens,
                                                absl::Span<const float> scores, int count,
                                                int begin, int end) {
  count = std::max(count, 0);
  const int num_tokens = static_cast<int>(tokens.size());
  const bool plain = params.neighbours == 0 && params.top_p >= 1;
  if (plain && num_tokens <= count) return {tokens, scores};
  chosen_.clear();
  chosen_scores_.clear();
  order_.resize(static_cast<size_t>(std::min(count, num_tokens)) + kTopKScratch);
  order_.resize(static_cast<size_t>(TopK(scores.data(), num_tokens, count, order_.data())));
  if (plain) {
    for (const int32_t i : order_) {
      chosen_.push_back(tokens[i]);
      chosen_scores_.push_back(scores[i]);
    }
    return {chosen_, chosen_scores_};
  }
  const auto better = [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::sort(order_.begin(), order_.end(), better);
  if (params.top_p < 1 && !order_.empty()) {
    const float highest = scores[order_[0]];
    double total = 0;
    for (const int32_t i : order_) total += std::exp(scores[i] - highest);
    double mass = 0;
    size_t kept = 0;
    while (kept < order_.size() && (kept == 0 || mass < params.top_p * total)) {
      mass += std::exp(scores[order_[kept++]] - highest);
    }
    order_.resize(kept);
  }
  TakeWithNeighbours(params, tokens, scores, count, begin, end);
  return {chosen_, chosen_scores_};
}

void ImportantTokens::TakeWithNeighbours(const AttentionParams& params,
                                         absl::Span<const int32_t> tokens,
                                         absl::Span<const float> scores, int count, int begin,
                                         int end) {
  taken_.clear();
  // A token costs at most 1 + 2 * neighbours places; the list stays sorted so that none comes
  // twice.
  const auto is_full = [&] { return static_cast<int>(taken_.size()) >= count; };
  for (const int32_t i : order_) {
    for (int distance = 0; distance <= params.neighbours && !is_full(); ++distance) {
      for (const int32_t token : {tokens[i] - distance, tokens[i] + distance}) {
        if (is_full()) break;
        if (token < begin || token >= end) continue;
        const auto at = std::lower_bound(
            taken_.begin(), taken_.end(), token,
            [](const std::pair<int32_t, float>& entry, int32_t t) { return entry.first < t; });
        if (at != taken_.end() && at->first == token) continue;
        taken_.insert(at, {token, scores[i]});
      }
    }
  }
  for (const auto& [token, score] : taken_) {
    chosen_.push_back(token);
    chosen_scores_.push_back(score);
  }
}

}  // namespace tokenbutler
