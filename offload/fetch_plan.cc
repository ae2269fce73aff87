#include "offload/fetch_plan.h"

#include <algorithm>

namespace tokenbutler {
namespace {

// Keeps the first `count` indices in the order of `before`, and puts them in ascending order.
template <typename Before>
void KeepFirst(size_t count, const Before& before, std::vector<int32_t>* indices) {
  if (count >= indices->size()) return;
  std::nth_element(indices->begin(), indices->begin() + static_cast<ptrdiff_t>(count),
                   indices->end(), before);
  indices->resize(count);
  std::sort(indices->begin(), indices->end());
}

}  // namespace

void PlanFetch(absl::Span<const int32_t> wanted, absl::Span<const float> wanted_scores,
               const SlotTokens& slots, int num_free, FetchPlan* plan) {
  plan->found.resize(wanted.size());
  plan->fetches.clear();
  plan->evictions.clear();
  // Both lists ascend: one pass finds what is resident, what is missing and what may go.
  size_t slot = 0;
  const auto pass_over = [&](int32_t token) {
    for (; slot < slots.tokens.size() && slots.tokens[slot] < token; ++slot) {
      if (slots.arriving[slot] == 0) plan->evictions.push_back(static_cast<int32_t>(slot));
    }
  };
  for (size_t i = 0; i < wanted.size(); ++i) {
    pass_over(wanted[i]);
    if (slot < slots.tokens.size() && slots.tokens[slot] == wanted[i]) {
      plan->found[i] = static_cast<int32_t>(slot++);
    } else {
      plan->found[i] = -1;
      plan->fetches.push_back(static_cast<int32_t>(i));
    }
  }
  plan->num_missing = static_cast<int>(plan->fetches.size());
  if (plan->num_missing == 0) {
    plan->evictions.clear();
    return;
  }
  pass_over(INT32_MAX);

  const size_t room = static_cast<size_t>(num_free) + plan->evictions.size();
  KeepFirst(
      room,
      [&](int32_t a, int32_t b) {
        return wanted_scores[a] != wanted_scores[b] ? wanted_scores[a] > wanted_scores[b] : a < b;
      },
      &plan->fetches);
  const size_t num_fetches = plan->fetches.size();
  const size_t num_victims =
      num_fetches > static_cast<size_t>(num_free) ? num_fetches - static_cast<size_t>(num_free) : 0;
  KeepFirst(
      num_victims,
      [&](int32_t a, int32_t b) {
        if (slots.last_used[a] != slots.last_used[b]) {
          return slots.last_used[a] < slots.last_used[b];
        }
        if (slots.scores[a] != slots.scores[b]) return slots.scores[a] < slots.scores[b];
        return a < b;
      },
      &plan->evictions);
}

}  // namespace tokenbutler
