#pragma once

#include <algorithm>
#include <cmath>

namespace tokenbutler {

// How many of the blocks that overlap a range a staged scan looks into: the fraction, and at least
// what holds k tokens even if the first and the last reach outside the range.
inline int NumKeptBlocks(int num_blocks, int block_size, int k, float block_fraction) {
  const int wanted = static_cast<int>(std::ceil(num_blocks * block_fraction));
  const int enough = (std::max(k, 1) + block_size - 1) / block_size + 2;
  return std::min(num_blocks, std::max(wanted, enough));
}

}  // namespace tokenbutler
