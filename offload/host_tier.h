#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/numa.h"
#include "base/status.h"
#include "offload/block_table.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// The memory of the full KV cache: `num_blocks` blocks of equal size in a few large regions, mapped
// once and never moved. Addresses are constant after Create, so any thread may ask for them; who
// may write to a block is the owner's business (the sequence that holds it).
class HostTier {
 public:
  struct Options {
    // Bytes for all blocks together; rounded down to whole blocks. A last group that is not full
    // has addresses for its missing blocks, too, and may take pages for them.
    int64_t capacity_bytes = 0;
    // Upper bound of one region. Few and large for pinning; several, so that one refused mapping of
    // everything does not decide.
    int64_t max_region_bytes = int64_t{16} << 30;
    // Touch every page now: a start that takes longer (about 1 s per 5 GiB), but memory that is not
    // there shows at start and no page fault hits a step. Off: pages come with first use.
    bool prefault = false;
    // On which memory nodes the pages lie. Change it when the compute threads run on several.
    NumaPlacement numa = NumaPlacement::kFirstTouch;
  };

  // INVALID_ARGUMENT when `layout` has no bytes or the capacity is below one block, naming both;
  // RESOURCE_EXHAUSTED when the system refuses the memory.
  static absl::StatusOr<HostTier> Create(const KvLayout& layout, const Options& options);

  // The first byte of a block: 64-byte aligned. Where the others are is the layout's to say.
  // REQUIRES: 0 <= block < num_blocks().
  std::byte* block(BlockId block) const {
    return bases_[static_cast<size_t>(block) / blocks_per_region_] +
           layout_.block_offset(static_cast<size_t>(block) % blocks_per_region_);
  }
  int num_blocks() const { return num_blocks_; }
  int num_regions() const { return static_cast<int>(regions_.size()); }
  int64_t capacity_bytes() const {
    return int64_t{num_blocks_} * static_cast<int64_t>(block_bytes_);
  }

 private:
  HostTier() = default;

  KvLayout layout_;
  size_t block_bytes_ = 0;        // rounded up to the alignment
  size_t blocks_per_region_ = 1;  // whole groups, unless there is one region
  int num_blocks_ = 0;
  std::vector<Buffer> regions_;
  std::vector<std::byte*> bases_;  // first byte of each region
};

// How much memory the KV cache may take when no flag says so.
struct MemoryBudget {
  int64_t limit_bytes =
      0;  // what this process may use: the cgroup's limit, else the machine's memory
  int64_t used_bytes = 0;  // taken already: weights, code, tokenizer
  // Left free for activations, logits, gRPC and the page cache of mapped weights.
  int64_t reserve_bytes = int64_t{1} << 30;
  double fraction = 0.9;  // of what remains
};

// fraction * (limit - used - reserve), at least 0.
int64_t DefaultKvCapacityBytes(const MemoryBudget& budget);

}  // namespace tokenbutler
