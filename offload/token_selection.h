#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tokenbutler {

// Which cached tokens of one sequence a layer attends to, per KV head: ascending, none twice. Data
// only, in flat arrays, so that it can live where the kernels run.
struct TokenSelection {
  int num_kv_heads = 0;
  int capacity = 0;             // most tokens per KV head
  std::vector<int32_t> counts;  // [num_kv_heads]
  std::vector<int32_t> tokens;  // [num_kv_heads, capacity]; the first counts[h] are valid
  // How much each token matters, same shape; of tokens unused for as long, the least are
  // evicted first. Sink and local tokens have +inf.
  std::vector<float> scores;

  // Takes the memory for lists of this size.
  void Reserve(int kv_heads, int tokens_per_head) {
    const size_t size = static_cast<size_t>(kv_heads) * static_cast<size_t>(tokens_per_head);
    counts.reserve(static_cast<size_t>(kv_heads));
    tokens.reserve(size);
    scores.reserve(size);
  }
  // Empties all lists and makes room. Allocates only when it has to grow.
  void Reset(int kv_heads, int tokens_per_head) {
    num_kv_heads = kv_heads;
    capacity = tokens_per_head;
    counts.assign(static_cast<size_t>(kv_heads), 0);
    const size_t size = static_cast<size_t>(kv_heads) * static_cast<size_t>(tokens_per_head);
    if (tokens.size() < size) tokens.resize(size);
    if (scores.size() < size) scores.resize(size);
  }
  void Add(int kv_head, int32_t token, float score) {
    const size_t at = static_cast<size_t>(kv_head) * capacity + counts[kv_head]++;
    tokens[at] = token;
    scores[at] = score;
  }
  // REQUIRES: as many scores as tokens.
  void AddAll(int kv_head, absl::Span<const int32_t> more, absl::Span<const float> their_scores) {
    const size_t at = static_cast<size_t>(kv_head) * capacity + counts[kv_head];
    std::copy(more.begin(), more.end(), tokens.begin() + at);
    std::copy(their_scores.begin(), their_scores.end(), scores.begin() + at);
    counts[kv_head] += static_cast<int32_t>(more.size());
  }
  absl::Span<const int32_t> tokens_of(int kv_head) const {
    return {tokens.data() + static_cast<size_t>(kv_head) * capacity,
            static_cast<size_t>(counts[kv_head])};
  }
  absl::Span<const float> scores_of(int kv_head) const {
    return {scores.data() + static_cast<size_t>(kv_head) * capacity,
            static_cast<size_t>(counts[kv_head])};
  }
};

}  // namespace tokenbutler
