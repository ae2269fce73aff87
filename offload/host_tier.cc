#include "offload/host_tier.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/logging.h"

namespace tokenbutler {
namespace {

constexpr size_t kPageBytes = 4096;

void Prefault(Buffer* region) {
  volatile std::byte* bytes = region->data();
  for (size_t i = 0; i < region->size(); i += kPageBytes) bytes[i] = std::byte{0};
}

}  // namespace

absl::StatusOr<HostTier> HostTier::Create(const KvLayout& layout, const Options& options) {
  HostTier tier;
  const size_t block_bytes = layout.block_bytes();
  if (block_bytes == 0) {
    return InvalidArgumentError(
        "the KV layout has no bytes: {} layers, {} KV heads, head_dim {}, block_size {}",
        layout.num_layers, layout.num_kv_heads, layout.head_dim, layout.block_size);
  }
  tier.layout_ = layout;
  KvLayout single = layout;
  single.group_blocks = 1;
  tier.block_bytes_ = single.block_offset(1);
  const auto block = static_cast<int64_t>(tier.block_bytes_);
  if (options.capacity_bytes < block) {
    return InvalidArgumentError("kv capacity is {} bytes, must hold one block of {} bytes at least",
                                options.capacity_bytes, block);
  }
  tier.num_blocks_ = static_cast<int>(
      std::min<int64_t>(options.capacity_bytes / block, std::numeric_limits<BlockId>::max()));
  const int64_t group = layout.group_blocks;
  const int64_t per_region = std::max<int64_t>(1, options.max_region_bytes / block / group) * group;
  tier.blocks_per_region_ = static_cast<size_t>(std::min<int64_t>(per_region, tier.num_blocks_));
  for (int64_t left = tier.num_blocks_; left > 0;) {
    const int64_t blocks = std::min<int64_t>(left, static_cast<int64_t>(tier.blocks_per_region_));
    ASSIGN_OR_RETURN(
        Buffer region,
        Buffer::Allocate(layout.blocks_bytes(static_cast<size_t>(blocks)), MemoryKind::kHugePage));
    if (!PlacePages(region.data(), region.size(), options.numa, MemoryNodes())) {
      LogWarning("the system does not spread the KV cache over its memory nodes");
    }
    if (options.prefault) Prefault(&region);
    tier.bases_.push_back(region.data());
    tier.regions_.push_back(std::move(region));
    left -= blocks;
  }
  return tier;
}

int64_t DefaultKvCapacityBytes(const MemoryBudget& budget) {
  const int64_t left = budget.limit_bytes - budget.used_bytes - budget.reserve_bytes;
  return left <= 0 ? 0 : static_cast<int64_t>(static_cast<double>(left) * budget.fraction);
}

}  // namespace tokenbutler
