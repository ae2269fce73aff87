#pragma once

#include "engine/selection/policy_spec.h"

namespace tokenbutler {

// StreamingLLM (arXiv 2309.17453): the first tokens (4 by default) and the last ones that the
// budget has room for. Positions are those inside the cache: the first tokens are seen as if they
// came right before the last ones.
extern const PolicySpec kStreamingLlmPolicy;

}  // namespace tokenbutler
