#pragma once

#include <cstdint>

namespace tokenbutler {

// Bytes that a policy takes for a sequence outside of the KV cache's blocks: what depends on the
// number of tokens.
struct PolicyMemory {
  int64_t own = 0;     // of each fork
  int64_t shared = 0;  // by the forks of one prompt
};

}  // namespace tokenbutler
