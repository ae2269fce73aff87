#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "offload/block_table.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Which blocks of the host tier are in use, and by how many sequences: the control plane that the
// scheduler sees. Knows no bytes (KvStore has them). Not thread-safe: the engine thread owns its
// state; num_blocks() and layout() are constant and may be read from anywhere.
class BlockPool {
 public:
  // REQUIRES: num_blocks >= 0.
  BlockPool(const KvLayout& layout, int num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Appends `count` free blocks, each with one owner, to `blocks`; or takes nothing and returns
  // false when fewer are free. The most recently released blocks (warm in the caches) come first.
  bool Allocate(int count, std::vector<BlockId>* blocks);

  // Adds an owner to each block: a fork shares the full blocks of its prompt. REQUIRES: in use.
  void Share(absl::Span<const BlockId> blocks);

  // Removes an owner from each block; a block without owners is free again. REQUIRES: in use.
  void Release(absl::Span<const BlockId> blocks);

  const KvLayout& layout() const { return layout_; }
  int num_blocks() const { return static_cast<int>(owners_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return num_blocks() - num_free(); }
  int high_water() const { return high_water_; }  // most blocks ever in use together
  int num_owners(BlockId block) const { return owners_[block]; }

 private:
  const KvLayout layout_;
  std::vector<int32_t> owners_;  // block -> sequences that hold it
  std::vector<BlockId> free_;    // a stack
  int high_water_ = 0;
};

}  // namespace tokenbutler
