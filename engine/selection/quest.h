#pragma once

#include "engine/selection/policy_spec.h"

namespace tokenbutler {

// Quest (arXiv 2406.10774): pages of 16 tokens, ranked at each step by an upper bound of their
// tokens' logits, from the minimum and maximum of each channel of the page's keys. max(3, budget /
// 16) pages are attended, the last one, which may be partly filled, always among them; layers 0
// and 1 attend to everything. sink_tokens and local_window, which the publication does not have and
// which are off by default, add the pages that they touch, within the budget.
extern const PolicySpec kQuestPolicy;

}  // namespace tokenbutler
