#include "offload/device_tier.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tokenbutler {
namespace {

constexpr size_t kBlockAlignment = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTier>> DeviceTier::Create(const KvLayout& layout,
                                                               int64_t capacity_bytes) {
  assert(layout.group_blocks == 1);
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

absl::StatusOr<std::vector<DeviceBlocks>> DeviceTier::Allocate(int count, int num_sequences) {
  if (int64_t{count} * num_sequences > pool_.num_free()) {
    const std::string each = num_sequences == 1 ? "the sequence needs"
                                                : fmt::format("{} sequences need {} times",
                                                              num_sequences, num_sequences);
    return ResourceExhaustedError("{} {} bytes of the device tier, {} of {} bytes are free", each,
                                  Bytes(count), Bytes(pool_.num_free()), capacity_bytes());
  }
  std::vector<DeviceBlocks> taken;
  taken.reserve(static_cast<size_t>(num_sequences));
  for (int i = 0; i < num_sequences; ++i) {
    std::vector<BlockId> ids;
    pool_.Allocate(count, &ids);
    taken.emplace_back(this, std::move(ids));
  }
  return taken;
}

}  // namespace tokenbutler
