#include "offload/kv_store.h"

#include <cstring>
#include <utility>

namespace tokenbutler {

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(
    const KvLayout& layout, const HostTier::Options& options,
    const std::optional<StagedOptions>& staged) {
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
  std::memcpy(host_.block(to), host_.block(from), layout_.block_bytes());
}

void KvStore::WriteBlock(absl::Span<const std::byte> bytes, BlockId to) {
  std::memcpy(host_.block(to), bytes.data(), layout_.block_bytes());
}

}  // namespace tokenbutler
