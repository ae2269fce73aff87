#pragma once

#include "engine/selection/policy_spec.h"

namespace tokenbutler {

// xKV (arXiv 2503.18893): attends to all tokens, but keeps the prompt's keys and values as low-rank
// factors that four adjacent layers share. Keys are factored before rotation. Decoded tokens are
// kept as they are. The ranks are the publication's at its model's hidden size, 512 of 4096 for
// keys and 768 for values, in proportion.
extern const PolicySpec kXkvPolicy;

}  // namespace tokenbutler
