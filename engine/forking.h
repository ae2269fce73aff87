#pragma once

#include "engine/step_plan.h"
#include "offload/block_table.h"
#include "offload/state_layout.h"

namespace tokenbutler {

// A fork has the first from.num_tokens tokens of another block table and shares its full blocks.
// Copies what it must own a copy of, rows of the block after them and records of the state block in
// which some are its own, and sets num_tokens. `state` as the policy has it; no record bytes: there
// are no state blocks. REQUIRES: `to` has its blocks.
void CopyPartialBlocks(const BlockTable& from, int block_size, const StateLayout& state,
                       ModelRunner& runner, BlockTable* to);

}  // namespace tokenbutler
