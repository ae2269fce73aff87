#include "offload/device_tier.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tokenbutler {
namespace {

constexpr size_t kBlockAlignment = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTier>> DeviceTier::Create(const KvLayout& layout,
                                                               int64_t capacity_bytes) {
  const size_t stride =
      (layout.block_bytes() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  if (stride == 0 || capacity_bytes < static_cast<int64_t>(stride)) {
    return InvalidArgumentError(
        "device capacity is {} bytes, must hold one block of {} bytes at least", capacity_bytes,
        stride);
  }
  const int num_blocks = static_cast<int>(std::min<int64_t>(
      capacity_bytes / static_cast<int64_t>(stride), std::numeric_limits<BlockId>::max()));
  ASSIGN_OR_RETURN(Buffer region, Buffer::Allocate(static_cast<size_t>(num_blocks) * stride,
                                                   MemoryKind::kHugePage));
  return std::unique_ptr<DeviceTier>(new DeviceTier(layout, num_blocks, stride, std::move(region)));
}

DeviceTier::DeviceTier(const KvLayout& layout, int num_blocks, size_t stride, Buffer region)
    : stride_(stride),
      region_(std::move(region)),
      base_(region_.data()),
      pool_(layout, num_blocks) {}

DeviceBlocks::~DeviceBlocks() {
  if (!ids_.empty()) tier_->pool_.Release(ids_);
}

absl::StatusOr<DeviceBlocks> DeviceTier::Allocate(int count) {
  std::vector<BlockId> ids;
  if (!pool_.Allocate(count, &ids)) {
    return ResourceExhaustedError(
        "the sequence needs {} bytes of the device tier, {} of {} bytes are free", Bytes(count),
        Bytes(pool_.num_free()), capacity_bytes());
  }
  return DeviceBlocks(this, std::move(ids));
}

}  // namespace tokenbutler
