#pragma once

#include <cstdint>
#include <vector>

namespace tokenbutler {

// `count` positions of a sequence, ascending: the last one and, at random, others of its last half,
// all of them when there are no more. Depends on the arguments alone.
std::vector<int> SampleRows(int num_tokens, int count, uint64_t seed, uint64_t sequence);

}  // namespace tokenbutler
