#include "offload/block_pool.h"

#include <algorithm>
#include <cassert>

namespace tokenbutler {

BlockPool::BlockPool(const KvLayout& layout, int num_blocks)
    : layout_(layout), owners_(num_blocks, 0) {
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

bool BlockPool::Allocate(int count, std::vector<BlockId>* blocks) {
  if (count > num_free()) return false;
  for (int i = 0; i < count; ++i) {
    const BlockId block = free_.back();
    free_.pop_back();
    owners_[block] = 1;
    blocks->push_back(block);
  }
  high_water_ = std::max(high_water_, num_used());
  return true;
}

void BlockPool::Share(absl::Span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    assert(owners_[block] > 0);
    ++owners_[block];
  }
}

void BlockPool::Release(absl::Span<const BlockId> blocks) {
  // Backwards: whoever gets them next gets them in the order in which they lie in memory.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    assert(owners_[*block] > 0);
    if (--owners_[*block] == 0) free_.push_back(*block);
  }
}

}  // namespace tokenbutler
