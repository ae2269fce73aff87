#pragma once

#include "engine/selection/policy_spec.h"

namespace tokenbutler {

// H2O (arXiv 2306.14048): half of the budget for the last tokens, the other for those that have got
// the most attention from all queries so far, the prompt's included, summed over the query heads
// of a KV head. What is evicted never comes back.
extern const PolicySpec kH2oPolicy;

}  // namespace tokenbutler
