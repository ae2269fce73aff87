#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "offload/block_table.h"
#include "offload/device_tier.h"
#include "offload/host_tier.h"
#include "offload/kv_layout.h"
#include "offload/resident_tokens.h"
#include "offload/transfer.h"

namespace tokenbutler {

// The data plane of the KV cache: where the bytes of a sequence's keys and values are. Layers and
// kernels ask here; the scheduler never does (it has the BlockPool). Rows are written by whoever
// runs the sequence's step, one writer per row; addresses never change, so reading them needs no
// lock.
//
// Attention kernels take the block bases of a sequence and the layout: token t, layer l, KV head h
// has its key row at
//   bases[t / block_size] + layout.key_offset(l, h) + (t % block_size) * layout.row_bytes().
class KvStore {
 public:
  // A device tier with a memory of its own (ResidentTokens' `staged`).
  struct StagedOptions {
    int64_t device_capacity_bytes = 0;  // for all sequences together
    int selections_kept = 3;            // replaces ResidentOptions::selections_kept
    TransferOptions transfers = {};
  };

  // Without `staged` the device tier is the host memory itself (`direct`), and its blocks lie in
  // groups: layout() is `layout` with the group_blocks chosen. A staged tier's blocks are of one
  // piece, on both sides of the link: it is copied from and to in runs, and attended to in the
  // device's memory.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(
      const KvLayout& layout, const HostTier::Options& options,
      const std::optional<StagedOptions>& staged = std::nullopt);

  const KvLayout& layout() const { return layout_; }
  int num_blocks() const { return host_.num_blocks(); }
  int64_t capacity_bytes() const { return host_.capacity_bytes(); }
  int num_regions() const { return host_.num_regions(); }

  std::byte* block(BlockId block) const { return host_.block(block); }

  // Where the key (value) row of a token is to be written: layout.row_bytes() bytes.
  // REQUIRES: `table` has the block of `position`.
  std::byte* key_row(const BlockTable& table, int layer, int kv_head, int position) const {
    return Row(table, position) + layout_.key_offset(layer, kv_head);
  }
  std::byte* value_row(const BlockTable& table, int layer, int kv_head, int position) const {
    return Row(table, position) + layout_.value_offset(layer, kv_head);
  }

  // Replaces `bases` by the bases of the blocks that hold the first `num_tokens` tokens.
  // Allocates only when the vector is too short for all of the table's blocks, so once for a
  // sequence. REQUIRES: `table` has those of the tokens.
  void BlockBases(const BlockTable& table, int num_tokens, std::vector<std::byte*>* bases) const;

  // Replaces `bases` by the bases of all state blocks of the sequence.
  void StateBases(const BlockTable& table, std::vector<std::byte*>* bases) const;

  // The tokens of one sequence that are in the device tier. The store must outlive them. Staged:
  // RESOURCE_EXHAUSTED when the device tier has no room for the sequence. Engine thread only.
  absl::StatusOr<std::unique_ptr<ResidentTokens>> NewResidentTokens(
      const ResidentOptions& options) const;

  // The tokens of a sequence that attends to everything, where it is: in the host tier.
  std::unique_ptr<ResidentTokens> NewHostTokens() const { return NewDirectTokens(layout_, host_); }

  // Of the device tier; 0 when it is the host memory itself. Engine thread only.
  int64_t device_used_bytes() const { return device_ == nullptr ? 0 : device_->used_bytes(); }
  int64_t device_capacity_bytes() const {
    return device_ == nullptr ? 0 : device_->capacity_bytes();
  }

  // Copies all rows of one block: a fork owns its partly filled block from then on.
  void CopyBlock(BlockId from, BlockId to);
  // All rows of one block, as a block of one piece has them. REQUIRES: layout.block_bytes() bytes.
  void ReadBlock(BlockId from, absl::Span<std::byte> bytes) const;
  void WriteBlock(absl::Span<const std::byte> bytes, BlockId to);

 private:
  KvStore(const KvLayout& layout, HostTier host) : layout_(layout), host_(std::move(host)) {}

  std::byte* Row(const BlockTable& table, int position) const {
    return host_.block(table.blocks[position / layout_.block_size]) +
           static_cast<size_t>(position % layout_.block_size) * layout_.row_bytes();
  }

  const KvLayout layout_;
  HostTier host_;
  // Staged only.
  int selections_kept_ = 1;
  std::unique_ptr<DeviceTier> device_;
  std::unique_ptr<Transfers> transfers_;
};

}  // namespace tokenbutler
