#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "offload/fetch_plan.h"

namespace tokenbutler {

// Which token is in which important slot of one layer and KV head. Plain bookkeeping: rows are
// moved by whoever applies the plans.
class SlotMap {
 public:
  // REQUIRES: capacity >= 0.
  explicit SlotMap(int capacity);

  // By ascending token. Valid until the next change.
  SlotTokens tokens() const {
    return {.tokens = tokens_, .scores = scores_, .last_used = last_used_, .arriving = arriving_};
  }
  int capacity() const { return capacity_; }
  int size() const { return static_cast<int>(tokens_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

  // Carries out a plan that was made from tokens() and num_free(): found tokens are marked as used
  // in `step`, victims go, fetched tokens get their slots and are arriving. `wanted` and
  // `wanted_scores` as given to PlanFetch. Replaces `slots` by the slot of each wanted token, in
  // [0, capacity), or -1 for those that the plan could not place.
  void Apply(const FetchPlan& plan, absl::Span<const int32_t> wanted,
             absl::Span<const float> wanted_scores, int32_t step, std::vector<int32_t>* slots);

  // All rows on their way have arrived.
  void SetArrived();
  // Empties all slots. REQUIRES: no row is on its way.
  void Clear();

 private:
  void Evict(absl::Span<const int32_t> evictions);
  void Insert(const FetchPlan& plan, absl::Span<const int32_t> wanted,
              absl::Span<const float> wanted_scores, int32_t step, absl::Span<const int32_t> slots);

  const int capacity_;
  // Of one length, by ascending token.
  std::vector<int32_t> tokens_, slots_;
  std::vector<float> scores_;
  std::vector<int32_t> last_used_;
  std::vector<uint8_t> arriving_;
  std::vector<int32_t> free_;  // empty slots, a stack
  bool any_arriving_ = false;
};

}  // namespace tokenbutler
