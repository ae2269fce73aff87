#include "offload/slot_map.h"

#include <algorithm>
#include <cassert>

namespace tokenbutler {

SlotMap::SlotMap(int capacity) : capacity_(capacity) {
  const size_t size = static_cast<size_t>(capacity);
  tokens_.reserve(size);
  slots_.reserve(size);
  scores_.reserve(size);
  last_used_.reserve(size);
  arriving_.reserve(size);
  free_.reserve(size);
  Clear();
}

void SlotMap::Clear() {
  tokens_.clear();
  slots_.clear();
  scores_.clear();
  last_used_.clear();
  arriving_.clear();
  free_.clear();
  for (int32_t slot = capacity_ - 1; slot >= 0; --slot) free_.push_back(slot);
  any_arriving_ = false;
}

void SlotMap::SetArrived() {
  if (!any_arriving_) return;
  std::fill(arriving_.begin(), arriving_.end(), uint8_t{0});
  any_arriving_ = false;
}

void SlotMap::Apply(const FetchPlan& plan, absl::Span<const int32_t> wanted,
                    absl::Span<const float> wanted_scores, int32_t step,
                    std::vector<int32_t>* slots) {
  slots->assign(wanted.size(), -1);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (plan.found[i] < 0) continue;
    const size_t index = static_cast<size_t>(plan.found[i]);
    (*slots)[i] = slots_[index];
    scores_[index] = wanted_scores[i];
    last_used_[index] = step;
  }
  if (plan.fetches.empty()) return;
  Evict(plan.evictions);
  assert(plan.fetches.size() <= free_.size());
  for (const int32_t i : plan.fetches) {
    (*slots)[static_cast<size_t>(i)] = free_.back();
    free_.pop_back();
  }
  Insert(plan, wanted, wanted_scores, step, *slots);
  any_arriving_ = true;
}

void SlotMap::Evict(absl::Span<const int32_t> evictions) {
  if (evictions.empty()) return;
  size_t kept = static_cast<size_t>(evictions[0]);
  size_t next = 0;
  for (size_t i = kept; i < tokens_.size(); ++i) {
    if (next < evictions.size() && static_cast<size_t>(evictions[next]) == i) {
      free_.push_back(slots_[i]);
      ++next;
      continue;
    }
    tokens_[kept] = tokens_[i];
    slots_[kept] = slots_[i];
    scores_[kept] = scores_[i];
    last_used_[kept] = last_used_[i];
    arriving_[kept] = arriving_[i];
    ++kept;
  }
  tokens_.resize(kept);
  slots_.resize(kept);
  scores_.resize(kept);
  last_used_.resize(kept);
  arriving_.resize(kept);
}

// Merges from the back, so that nothing but the arrays themselves is needed.
void SlotMap::Insert(const FetchPlan& plan, absl::Span<const int32_t> wanted,
                     absl::Span<const float> wanted_scores, int32_t step,
                     absl::Span<const int32_t> slots) {
  size_t old = tokens_.size();
  const size_t size = old + plan.fetches.size();
  tokens_.resize(size);
  slots_.resize(size);
  scores_.resize(size);
  last_used_.resize(size);
  arriving_.resize(size);
  size_t fresh = plan.fetches.size();
  for (size_t to = size; fresh > 0;) {
    --to;
    const size_t index = static_cast<size_t>(plan.fetches[fresh - 1]);
    if (old > 0 && tokens_[old - 1] > wanted[index]) {
      --old;
      tokens_[to] = tokens_[old];
      slots_[to] = slots_[old];
      scores_[to] = scores_[old];
      last_used_[to] = last_used_[old];
      arriving_[to] = arriving_[old];
      continue;
    }
    --fresh;
    tokens_[to] = wanted[index];
    slots_[to] = slots[index];
    scores_[to] = wanted_scores[index];
    last_used_[to] = step;
    arriving_[to] = 1;
  }
}

}  // namespace tokenbutler
