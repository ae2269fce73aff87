#include "offload/kv_store.h"

#include <cstring>
#include <utility>

namespace tokenbutler {
namespace {

// Fewer than usual where the blocks that the last group lacks would be more than a sixteenth of
// all.
int GroupBlocksFor(const KvLayout& layout, int64_t capacity_bytes) {
  constexpr int64_t kLeastGroups = 16;
  constexpr size_t kLine = 64;
  if (layout.block_bytes() == 0 || layout.head_bytes() % kLine != 0) return 1;
  const int64_t num_blocks = capacity_bytes / static_cast<int64_t>(layout.block_bytes());
  int64_t group = KvLayout::kGroupBlocks;
  while (group > 1 && group * kLeastGroups > num_blocks) group /= 2;
  return static_cast<int>(group);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(
    const KvLayout& asked, const HostTier::Options& options,
    const std::optional<StagedOptions>& staged) {
  KvLayout layout = asked;
  layout.group_blocks = staged.has_value() ? 1 : GroupBlocksFor(layout, options.capacity_bytes);
  ASSIGN_OR_RETURN(HostTier host, HostTier::Create(layout, options));
  std::unique_ptr<KvStore> store(new KvStore(layout, std::move(host)));
  if (staged.has_value()) {
    store->selections_kept_ = staged->selections_kept;
    ASSIGN_OR_RETURN(store->device_, DeviceTier::Create(layout, staged->device_capacity_bytes));
    ASSIGN_OR_RETURN(store->transfers_, NewTransferWorkers(staged->transfers));
  }
  return store;
}

void KvStore::BlockBases(const BlockTable& table, int num_tokens,
                         std::vector<std::byte*>* bases) const {
  const int count = layout_.blocks_for(num_tokens);
  bases->reserve(table.blocks.size());
  bases->resize(count);
  for (int i = 0; i < count; ++i) (*bases)[i] = host_.block(table.blocks[i]);
}

void KvStore::StateBases(const BlockTable& table, std::vector<std::byte*>* bases) const {
  bases->resize(table.state_blocks.size());
  for (size_t i = 0; i < bases->size(); ++i) (*bases)[i] = host_.block(table.state_blocks[i]);
}

absl::StatusOr<std::unique_ptr<ResidentTokens>> KvStore::NewResidentTokens(
    const ResidentOptions& options) const {
  if (device_ == nullptr) return NewDirectTokens(layout_, host_);
  ResidentOptions staged = options;
  staged.selections_kept = selections_kept_;
  return NewStagedTokens(
      {.layout = layout_, .host = &host_, .device = device_.get(), .transfers = transfers_.get()},
      staged);
}

void KvStore::CopyBlock(BlockId from, BlockId to) {
  const size_t stride = layout_.lane_stride();
  for (int i = 0; i < layout_.num_lanes(); ++i) {
    std::memcpy(host_.block(to) + i * stride, host_.block(from) + i * stride, layout_.head_bytes());
  }
}

void KvStore::ReadBlock(BlockId from, absl::Span<std::byte> bytes) const {
  const size_t size = layout_.head_bytes();
  for (int i = 0; i < layout_.num_lanes(); ++i) {
    std::memcpy(bytes.data() + i * size, host_.block(from) + i * layout_.lane_stride(), size);
  }
}

void KvStore::WriteBlock(absl::Span<const std::byte> bytes, BlockId to) {
  const size_t size = layout_.head_bytes();
  for (int i = 0; i < layout_.num_lanes(); ++i) {
    std::memcpy(host_.block(to) + i * layout_.lane_stride(), bytes.data() + i * size, size);
  }
}

}  // namespace tokenbutler
