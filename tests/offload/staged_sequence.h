#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "offload/device_tier.h"
#include "offload/host_tier.h"
#include "offload/resident_tokens.h"
#include "offload/row_copies.h"
#include "offload/token_selection.h"
#include "offload/transfer.h"

namespace tokenbutler {

// A row that says whose it is.
struct NamedRow {
  int32_t token = -1, layer = -1, kv_head = -1, is_value = -1;
  bool operator==(const NamedRow&) const = default;
};

// int8 rows are named bytewise and have scales that name them once more.
inline KvLayout NamedRowLayout(int block_size, DType dtype = DType::kF32) {
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .head_dim = static_cast<int>(sizeof(NamedRow) / DTypeBytes(dtype)),
          .block_size = block_size,
          .dtype = dtype};
}

inline std::byte* RowAt(const KvLayout& layout, std::byte* block, int layer, int kv_head,
                        bool is_value, int row) {
  return block +
         (is_value ? layout.value_offset(layer, kv_head) : layout.key_offset(layer, kv_head)) +
         static_cast<size_t>(row) * layout.row_bytes();
}

inline std::byte* ScaleAt(const KvLayout& layout, std::byte* block, int layer, int kv_head,
                          bool is_value, int row) {
  return block + layout.scale_offset(layer, kv_head) +
         static_cast<size_t>(row) * layout.token_scale_bytes() + (is_value ? sizeof(float) : 0);
}

inline float ScaleOf(const NamedRow& row) {
  return static_cast<float>(row.token * 12 + row.layer * 4 + row.kv_head * 2 + row.is_value);
}

// `first_name`: what the sequence's token 0 is called.
inline void WriteToken(const KvLayout& layout, std::byte* block, int layer, int token,
                       int first_name) {
  for (int h = 0; h < layout.num_kv_heads; ++h) {
    for (const int is_value : {0, 1}) {
      const NamedRow row{first_name + token, layer, h, is_value};
      std::memcpy(RowAt(layout, block, layer, h, is_value != 0, token % layout.block_size), &row,
                  sizeof(row));
      if (!layout.has_scales()) continue;
      const float scale = ScaleOf(row);
      std::memcpy(ScaleAt(layout, block, layer, h, is_value != 0, token % layout.block_size),
                  &scale, sizeof(scale));
    }
  }
}

// The row and its scale, if it has one; all -2 when they do not belong together.
inline NamedRow ReadRow(const KvLayout& layout, std::byte* block, int layer, int kv_head,
                        bool is_value, int row) {
  NamedRow named;
  std::memcpy(&named, RowAt(layout, block, layer, kv_head, is_value, row), sizeof(named));
  if (!layout.has_scales()) return named;
  float scale = 0;
  std::memcpy(&scale, ScaleAt(layout, block, layer, kv_head, is_value, row), sizeof(scale));
  return scale == ScaleOf(named) ? named : NamedRow{-2, -2, -2, -2};
}

// The names of the tokens that a view shows to a KV head; -2 for a row that is not what it should
// be.
inline std::vector<int32_t> TokensOf(const KvLayout& layout, const ResidentView& view, int layer,
                                     int kv_head) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < view.num_rows[kv_head]; ++i) {
    const int32_t row = view.rows[kv_head][i];
    auto* block = const_cast<std::byte*>(view.blocks[row / layout.block_size]);
    const NamedRow key = ReadRow(layout, block, layer, kv_head, false, row % layout.block_size);
    const NamedRow value = ReadRow(layout, block, layer, kv_head, true, row % layout.block_size);
    const bool is_right = key == NamedRow{key.token, layer, kv_head, 0} &&
                          value == NamedRow{key.token, layer, kv_head, 1};
    tokens.push_back(is_right ? key.token : -2);
  }
  return tokens;
}

// Counts what really travels, and that no transfer has a row twice.
class CountedTransfers : public Transfers {
 public:
  explicit CountedTransfers(const TransferOptions& options)
      : workers_(*NewTransferWorkers(options)) {}

  TransferTicket Submit(TransferDirection direction, absl::Span<const RowCopy> copies) override {
    std::set<const std::byte*> from, to;
    for (const RowCopy& copy : copies) {
      bytes_[static_cast<int>(direction)] += static_cast<int64_t>(copy.bytes);
      EXPECT_TRUE(from.insert(copy.from).second) << "a plan has a row twice";
      EXPECT_TRUE(to.insert(copy.to).second) << "a plan has a target twice";
    }
    ++num_open_;
    return workers_->Submit(direction, copies);
  }
  bool IsDone(TransferTicket ticket) const override { return workers_->IsDone(ticket); }
  Times Finish(TransferTicket ticket) override {
    --num_open_;
    return workers_->Finish(ticket);
  }
  void Abandon(TransferTicket ticket) override {
    --num_open_;
    workers_->Abandon(ticket);
  }

  int64_t bytes(TransferDirection direction) const { return bytes_[static_cast<int>(direction)]; }
  int num_open() const { return num_open_; }  // neither finished nor abandoned

 private:
  int64_t bytes_[2] = {0, 0};
  int num_open_ = 0;
  std::unique_ptr<Transfers> workers_;
};

// Makes workers slow by up to `most`, each transfer by another time.
inline std::function<void(TransferDirection)> RandomDelays(absl::Duration most) {
  auto state = std::make_shared<std::atomic<uint32_t>>(1);
  return [most, state](TransferDirection) {
    const uint32_t x = state->fetch_add(1) * 2654435761u;
    absl::SleepFor(most * (static_cast<double>(x >> 16) / 65536));
  };
}

// Both tiers, and the transfers between them.
class StagedTiers {
 public:
  StagedTiers(const KvLayout& layout, int host_blocks, int64_t device_bytes,
              const TransferOptions& options = {})
      : layout_(layout),
        host_(*HostTier::Create(layout, {.capacity_bytes = host_blocks * Stride(layout)})),
        device_(*DeviceTier::Create(layout, device_bytes)),
        transfers_(options) {
    for (BlockId b = 0; b < host_.num_blocks(); ++b) {
      std::memset(host_.block(b), 0xdd, layout.block_bytes());
    }
    for (BlockId b = 0; b < device_->num_blocks(); ++b) {
      std::memset(device_->block(b), 0xee, layout.block_bytes());
    }
  }
  static int64_t Stride(const KvLayout& layout) {
    return static_cast<int64_t>((layout.block_bytes() + 63) / 64 * 64);
  }

  const KvLayout& layout() const { return layout_; }
  HostTier& host() { return host_; }
  DeviceTier& device() { return *device_; }
  CountedTransfers& transfers() { return transfers_; }
  StagedTier tier() {
    return {.layout = layout_, .host = &host_, .device = device_.get(), .transfers = &transfers_};
  }

 private:
  const KvLayout layout_;
  HostTier host_;
  std::unique_ptr<DeviceTier> device_;
  CountedTransfers transfers_;
};

// A sequence whose rows are written by hand, with its resident tokens of either kind.
class HandWrittenSequence {
 public:
  HandWrittenSequence(const KvLayout& layout, const HostTier& host, std::vector<BlockId> blocks,
                      std::unique_ptr<ResidentTokens> resident, int first_name = 0)
      : layout_(layout), host_(host), first_name_(first_name), resident_(std::move(resident)) {
    table_.blocks = std::move(blocks);
  }

  ResidentTokens& resident() { return *resident_; }
  int num_tokens() const { return num_tokens_; }
  int first_name() const { return first_name_; }
  void Forget() { resident_.reset(); }

  void Prefill(int count) {
    resident_->BeginPrefill(num_tokens_ + count);
    // What a prefill reads: every earlier row, in the host tier.
    for (int t = 0; t < num_tokens_; ++t) ExpectToken(HostBlock(t), t);
    for (int i = 0; i < count; ++i, ++num_tokens_) {
      for (int l = 0; l < layout_.num_layers; ++l) {
        WriteToken(layout_, HostBlock(num_tokens_), l, num_tokens_, first_name_);
      }
    }
  }

  void BeginStep() {
    ++num_tokens_;
    resident_->BlockBases(table_, num_tokens_, &bases_);
    ASSERT_EQ(bases_.size(), layout_.blocks_for(num_tokens_));
  }
  // The layer's keys and values of the new token; then all its rows are where the bases say.
  void WriteLayer(int layer) {
    const int newest = num_tokens_ - 1;
    WriteToken(layout_, bases_[newest / layout_.block_size], layer, newest, first_name_);
    for (int t = 0; t < num_tokens_; ++t) ExpectRow(bases_[t / layout_.block_size], t, layer);
  }
  std::vector<std::byte*> bases() const { return bases_; }

 private:
  std::byte* HostBlock(int token) const {
    return host_.block(table_.blocks[token / layout_.block_size]);
  }
  void ExpectRow(std::byte* block, int token, int layer) {
    for (int h = 0; h < layout_.num_kv_heads; ++h) {
      for (const int is_value : {0, 1}) {
        const NamedRow row =
            ReadRow(layout_, block, layer, h, is_value != 0, token % layout_.block_size);
        ASSERT_EQ(row, (NamedRow{first_name_ + token, layer, h, is_value}))
            << "token " << token << " of " << num_tokens_ << " has row of " << row.token;
      }
    }
  }
  void ExpectToken(std::byte* block, int token) {
    for (int l = 0; l < layout_.num_layers; ++l) ExpectRow(block, token, l);
  }

  const KvLayout layout_;
  const HostTier& host_;
  const int first_name_;
  std::unique_ptr<ResidentTokens> resident_;
  BlockTable table_;
  std::vector<std::byte*> bases_;
  int num_tokens_ = 0;
};

}  // namespace tokenbutler
