#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/status.h"
#include "offload/block_pool.h"
#include "offload/block_table.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

class DeviceTier;

// What a sequence holds of the device tier; gives it back when it dies. Moves, does not copy. The
// tier must outlive it.
class DeviceBlocks {
 public:
  DeviceBlocks(DeviceTier* tier, std::vector<BlockId> ids) : tier_(tier), ids_(std::move(ids)) {}
  DeviceBlocks(DeviceBlocks&& other) noexcept : tier_(other.tier_), ids_(std::move(other.ids_)) {
    other.ids_.clear();
  }
  DeviceBlocks& operator=(DeviceBlocks&&) = delete;
  ~DeviceBlocks();

  absl::Span<const BlockId> ids() const { return ids_; }

 private:
  DeviceTier* tier_;
  std::vector<BlockId> ids_;
};

// The memory of the device tier: blocks with the same layout as the host tier's, in one region.
// Sequences take what they need for their sink, ring and slots when they start and give it back
// when they end. Engine thread only; block addresses are constant.
class DeviceTier {
 public:
  // For all blocks together, rounded down to whole blocks, each of one piece. INVALID_ARGUMENT when
  // that is below one block, naming both; RESOURCE_EXHAUSTED when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<DeviceTier>> Create(const KvLayout& layout,
                                                            int64_t capacity_bytes);

  // `count` blocks for each of `num_sequences`: all or none. RESOURCE_EXHAUSTED naming what is
  // wanted, free and there.
  absl::StatusOr<std::vector<DeviceBlocks>> Allocate(int count, int num_sequences);

  // The first byte of a block: 64-byte aligned, layout.block_bytes() long.
  std::byte* block(BlockId block) const { return base_ + static_cast<size_t>(block) * stride_; }
  int num_blocks() const { return pool_.num_blocks(); }
  int64_t capacity_bytes() const { return Bytes(pool_.num_blocks()); }
  int64_t used_bytes() const { return Bytes(pool_.num_used()); }
  int64_t high_water_bytes() const { return Bytes(pool_.high_water()); }

 private:
  friend class DeviceBlocks;
  DeviceTier(const KvLayout& layout, int num_blocks, size_t stride, Buffer region);
  int64_t Bytes(int num_blocks) const {
    return int64_t{num_blocks} * static_cast<int64_t>(stride_);
  }

  const size_t stride_;  // block_bytes rounded up to the alignment
  Buffer region_;
  std::byte* const base_;
  BlockPool pool_;
};

}  // namespace tokenbutler
