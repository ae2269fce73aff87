#include "engine/forking.h"

#include <cstddef>

namespace tokenbutler {

void CopyPartialBlocks(const BlockTable& from, int block_size, const StateLayout& state,
                       ModelRunner& runner, BlockTable* to) {
  const int num_tokens = from.num_tokens;
  to->num_tokens = num_tokens;
  if (num_tokens % block_size != 0) {
    const size_t partial = static_cast<size_t>(num_tokens / block_size);
    runner.CopyBlock(from.blocks[partial], to->blocks[partial]);
  }
  if (state.record_bytes == 0) return;
  const int state_tokens = block_size * state.kv_blocks();
  if (num_tokens % state_tokens != 0) {
    const size_t partial = static_cast<size_t>(num_tokens / state_tokens);
    runner.CopyBlock(from.state_blocks[partial], to->state_blocks[partial]);
  }
}

}  // namespace tokenbutler
