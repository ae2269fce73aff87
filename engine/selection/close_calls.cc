#include "engine/selection/close_calls.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;  // behind TopK's indices

}  // namespace

void CloseCalls::Reserve(int num_kv_heads, int max_candidates) {
  open_.Reserve(num_kv_heads, max_candidates);
  heads_.resize(static_cast<size_t>(num_kv_heads));
  const size_t size = static_cast<size_t>(max_candidates);
  for (Head& head : heads_) {
    head.places.reserve(size);
    head.best.reserve(size + kTopKScratch);
    head.chosen.reserve(size);
  }
}

void CloseCalls::Reset(int num_kv_heads, int max_candidates) {
  open_.Reset(num_kv_heads, max_candidates);
  heads_.resize(static_cast<size_t>(num_kv_heads));
}

void CloseCalls::Find(const TokenSelection& candidates, int kv_head, int num_chosen) {
  const absl::Span<const int32_t> tokens = candidates.tokens_of(kv_head);
  const absl::Span<const float> scores = candidates.scores_of(kv_head);
  const int num_candidates = static_cast<int>(tokens.size());
  const int num_spare = num_candidates - num_chosen;
  if (num_spare <= 0) return;
  const int num_sure = std::max(0, num_chosen - num_spare);
  // Those above the best open one are sure.
  const float border = KthLargest(scores.data(), num_candidates, num_sure + 1);
  Head& head = heads_[kv_head];
  head.places.resize(tokens.size());
  int num_open = 0;
  for (int i = 0; i < num_candidates; ++i) {
    head.places[num_open] = i;
    num_open += scores[i] > border ? 0 : 1;
  }
  for (int i = 0; i < num_open; ++i) {
    open_.Add(kv_head, tokens[head.places[i]], scores[head.places[i]]);
  }
}

void CloseCalls::AddChosen(const TokenSelection& candidates, int kv_head, int num_chosen,
                           TokenSelection* selection) {
  const absl::Span<const int32_t> tokens = candidates.tokens_of(kv_head);
  const absl::Span<const float> scores = candidates.scores_of(kv_head);
  const absl::Span<const float> open_scores = open_.scores_of(kv_head);
  const int num_candidates = static_cast<int>(tokens.size());
  const int num_open = static_cast<int>(open_scores.size());
  if (num_candidates <= num_chosen) return selection->AddAll(kv_head, tokens, scores);
  const int num_best = num_chosen - (num_candidates - num_open);
  Head& head = heads_[kv_head];
  head.best.resize(static_cast<size_t>(num_best) + kTopKScratch);
  TopK(open_scores.data(), num_open, num_best, head.best.data());
  head.chosen.assign(tokens.size(), 1);
  for (int i = 0; i < num_open; ++i) head.chosen[head.places[i]] = 0;
  for (int i = 0; i < num_best; ++i) head.chosen[head.places[head.best[i]]] = 1;
  // Without branches, which nobody could predict.
  const size_t at = static_cast<size_t>(kv_head) * selection->capacity + selection->counts[kv_head];
  int32_t* out_tokens = selection->tokens.data() + at;
  float* out_scores = selection->scores.data() + at;
  int count = 0;
  for (int i = 0; count < num_chosen; ++i) {
    out_tokens[count] = tokens[i];
    out_scores[count] = scores[i];
    count += head.chosen[i];
  }
  selection->counts[kv_head] += num_chosen;
}

}  // namespace tokenbutler
