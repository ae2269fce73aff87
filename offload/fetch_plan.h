#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tokenbutler {

// What the important slots of one layer and KV head hold, in flat arrays of one length, by
// ascending token.
struct SlotTokens {
  absl::Span<const int32_t> tokens;     // none twice
  absl::Span<const float> scores;       // how much the token mattered when it was last wanted
  absl::Span<const int32_t> last_used;  // the step in which it was last wanted
  absl::Span<const uint8_t> arriving;   // 1: its row is still on its way, the slot must not change
};

// A token selection minus what is resident.
struct FetchPlan {
  // [wanted.size()] index into SlotTokens, -1: missing.
  std::vector<int32_t> found;
  // Indices into `wanted` of the tokens to fetch, ascending: all that are missing, or the most
  // important of them when no more fit.
  std::vector<int32_t> fetches;
  // Indices into SlotTokens of those that make room, ascending; no more than `fetches` needs.
  std::vector<int32_t> evictions;
  int num_missing = 0;
};

// Plans to make `wanted` tokens (ascending, none twice, with a score each) resident in slots of
// which `num_free` are empty. Victims are tokens that are not wanted: the longest unused first, of
// equals the least score, of equals the oldest token (by score first, tokens that mattered long ago
// stay for ever, and those at the edge of the selection, which come back, go). A pure function over
// flat arrays, so that it can become a kernel where selections are made. Allocates only when
// vectors of `plan` grow.
void PlanFetch(absl::Span<const int32_t> wanted, absl::Span<const float> wanted_scores,
               const SlotTokens& slots, int num_free, FetchPlan* plan);

}  // namespace tokenbutler
