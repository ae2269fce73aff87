#pragma once

#include <cstdint>
#include <vector>

namespace tokenbutler {

using BlockId = int32_t;

// The blocks of one sequence in token order, and how many tokens they hold. Token t lives in
// blocks[t / block_size] at row t % block_size. A plain value of the control plane (what the
// scheduler sees); the blocks' bytes are the KvStore's.
struct BlockTable {
  std::vector<BlockId> blocks;  // all that the sequence may use, taken at admission
  // What the sequence's selection policy derives from those blocks (StateLayout), from the same
  // pool.
  std::vector<BlockId> state_blocks;
  int num_tokens = 0;  // tokens whose K and V rows are written
};

}  // namespace tokenbutler
