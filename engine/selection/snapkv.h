#pragma once

#include "engine/selection/policy_spec.h"

namespace tokenbutler {

// SnapKV (arXiv 2404.14469): chooses once, when the prompt is complete. Each token before the
// prompt's last `local_window` tokens (32 by default) is scored by the attention that the queries
// of these pay to it: the sum of their softmax rows, the mean over the query heads of a KV head,
// then the maximum over the token and its three neighbours on each side. The best are kept, with
// the window and all tokens that follow; where these would exceed the budget, the least of the
// chosen make room, one for each.
extern const PolicySpec kSnapKvPolicy;

}  // namespace tokenbutler
