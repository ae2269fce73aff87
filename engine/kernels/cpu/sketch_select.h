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

// How many of the blocks that overlap the range are looked into, likewise.
inline int NumKeptBlocks(int num_blocks, int block_size, int k, float block_fraction) {
  const int wanted = static_cast<int>(std::ceil(num_blocks * block_fraction));
  const int enough = (std::max(k, 1) + block_size - 1) / block_size + 2;
  return std::min(num_blocks, std::max(wanted, enough));
}

}  // namespace tokenbutler
