#pragma once

#include <algorithm>
#include <cmath>

namespace tokenbutler {

// How many sub-blocks of 16 tokens overlap [begin, end).
inline int NumSubBlocks(int begin, int end) {
  return end <= begin ? 0 : (end + 15) / 16 - begin / 16;
}

// How many of them a staged scan scores: the fraction, and at least what holds k tokens even if the
// first and the last reach outside the range.
inline int NumScoredSubBlocks(int num_sub_blocks, int k, float scan_fraction) {
  const int wanted = static_cast<int>(std::ceil(num_sub_blocks * scan_fraction));
  return std::min(num_sub_blocks, std::max(wanted, (std::max(k, 1) + 15) / 16 + 2));
}

}  // namespace tokenbutler
