#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>
#include <vector>

#include "offload/block_places.h"
#include "offload/device_tier.h"
#include "offload/fetch_plan.h"
#include "offload/host_tier.h"
#include "offload/kv_layout.h"
#include "offload/resident_tokens.h"
#include "offload/row_arrivals.h"
#include "offload/row_copies.h"
#include "offload/slot_map.h"
#include "offload/transfer.h"
#include "offload/write_back.h"

namespace tokenbutler {
namespace {

constexpr int kMaxSelectionsKept = 64;

// A device tier that is a memory of its own. The sequence's blocks there, all with the KvLayout of
// the host tier, are
//
//   places (BlockPlaces: sink | ring) | slots
//
// A token has the same row number in its place as in its host block. Slot s of a layer and KV head
// is row s of the slot blocks at that layer's and head's offset, so that attention reads places and
// slots alike.
//
// Why no row is read from the host tier before it is there: fetches name only tokens whose block is
// not in a place, and a block leaves the ring only when its write-back has finished.
//
// What is resident depends on the selections alone, never on how fast transfers are: a layer always
// waits for what was on its way before.
class StagedTokens : public ResidentTokens {
 public:
  StagedTokens(const StagedTier& tier, const ResidentOptions& options, DeviceBlocks device_blocks,
               std::shared_ptr<std::vector<DeviceBlocks>> for_forks, int rows_counted)
      : tier_(tier),
        layout_(tier.layout),
        options_(options),
        places_(BlockPlaces::For(tier.layout, options)),
        device_blocks_(std::move(device_blocks)),
        for_forks_(std::move(for_forks)),
        rows_counted_(rows_counted),
        write_back_(tier.layout, tier.transfers, &counters_),
        arrivals_(tier.layout.num_layers, tier.transfers, &counters_),
        rows_(static_cast<size_t>(tier.layout.num_kv_heads)),
        row_lists_(rows_.size()),
        num_rows_(rows_.size()) {
    const int num_maps = layout_.num_layers * layout_.num_kv_heads;
    maps_.reserve(static_cast<size_t>(num_maps));
    for (int i = 0; i < num_maps; ++i) maps_.emplace_back(NumSlots(options));
    for (const BlockId id : device_blocks_.ids()) blocks_.push_back(tier_.device->block(id));
    num_device_blocks_ = static_cast<int>(blocks_.size());
    Reserve();
  }

  // Takes the blocks of the sequence and of its forks to come.
  static absl::StatusOr<std::unique_ptr<ResidentTokens>> New(const StagedTier& tier,
                                                             const ResidentOptions& options) {
    ASSIGN_OR_RETURN(std::vector<DeviceBlocks> taken,
                     tier.device->Allocate(NumBlocks(tier.layout, options), options.num_forks + 1));
    DeviceBlocks own = std::move(taken.back());
    taken.pop_back();
    return std::make_unique<StagedTokens>(
        tier, options, std::move(own),
        std::make_shared<std::vector<DeviceBlocks>>(std::move(taken)),
        /*rows_counted=*/0);
  }

  static int NumSlots(const ResidentOptions& options) {
    return std::max(options.token_budget, options.candidates) * options.selections_kept;
  }
  static int NumBlocks(const KvLayout& layout, const ResidentOptions& options) {
    return BlockPlaces::For(layout, options).count() + layout.blocks_for(NumSlots(options));
  }

  absl::StatusOr<std::unique_ptr<ResidentTokens>> Fork() const override;
  void BlockBases(const BlockTable& table, int num_tokens, std::vector<std::byte*>* bases) override;
  void Prefetch(int layer, const TokenSelection& selection) override;
  ResidentView Fetch(int layer, const TokenSelection& selection, bool may_defer) override;
  void EndStep() override;
  void BeginPrefill(int num_tokens) override;
  const OffloadCounters& counters() const override { return counters_; }

 private:
  // The tokens of a KV head's selection, ascending, that are in no place: [begin, end) of them.
  struct Middle {
    size_t begin = 0, end = 0;
  };

  absl::Span<SlotMap> maps(int layer) {
    const size_t size = static_cast<size_t>(layout_.num_kv_heads);
    return {maps_.data() + static_cast<size_t>(layer) * size, size};
  }
  int newest_block() const { return (num_tokens_ - 1) / layout_.block_size; }
  std::byte* place(int block) const { return blocks_[static_cast<size_t>(places_.place(block))]; }
  std::byte* host_block(int block) const { return blocks_[num_device_blocks_ + block]; }
  int32_t slot_row(int32_t slot) const { return places_.count() * layout_.block_size + slot; }

  // Takes the memory that steps work in.
  void Reserve();
  // Brings what the host tier has of the tokens in places.
  void Fill(int num_host_tokens);
  // Before the first token of a block is written: its place must be nobody's.
  void MakeRoomFor(int block);
  // Waits for what is on its way to the layer.
  void Await(int layer);
  Middle MiddleOf(absl::Span<const int32_t> tokens) const;
  // Makes a KV head's middle tokens resident, as far as there are slots, and appends the copies.
  void PlanHead(int layer, int kv_head, absl::Span<const int32_t> tokens,
                absl::Span<const float> scores);
  // Fills rows_[kv_head] after PlanHead.
  void ListRows(int kv_head, absl::Span<const int32_t> tokens, Middle middle, bool leaves_out);
  void ListPlaces(absl::Span<const int32_t> tokens, std::vector<int32_t>* rows) const;

  const StagedTier tier_;
  const KvLayout layout_;
  const ResidentOptions options_;
  const BlockPlaces places_;
  // [places_.count()] places, then slots. Declared before write_back_ and arrivals_, which touch
  // them to their end.
  const DeviceBlocks device_blocks_;
  // Shared by a sequence and its forks.
  const std::shared_ptr<std::vector<DeviceBlocks>> for_forks_;
  OffloadCounters counters_;
  int rows_counted_;  // tokens whose rows have been counted on their way to the host tier
  WriteBack write_back_;
  RowArrivals arrivals_;
  std::vector<SlotMap> maps_;       // [num_layers, num_kv_heads]
  std::vector<std::byte*> blocks_;  // of the device, then of the host: what views' rows refer to
  int num_device_blocks_ = 0;
  bool is_filled_ = false;     // places were, since the last prefill
  bool fills_arrive_ = false;  // rows of places may be on their way
  int num_tokens_ = 0;         // of the step that runs, or that ran last
  int32_t step_ = 0;
  // Of the layer at work, kept for their memory.
  std::vector<RowCopy> copies_;
  FetchPlan plan_;
  std::vector<int32_t> slots_;              // of the tokens planned for
  std::vector<std::vector<int32_t>> rows_;  // [num_kv_heads]
  std::vector<const int32_t*> row_lists_;
  std::vector<int32_t> num_rows_;
};

absl::StatusOr<std::unique_ptr<ResidentTokens>> StagedTokens::Fork() const {
  if (!for_forks_->empty()) {
    DeviceBlocks blocks = std::move(for_forks_->back());
    for_forks_->pop_back();
    return std::make_unique<StagedTokens>(tier_, options_, std::move(blocks), for_forks_,
                                          rows_counted_);
  }
  ASSIGN_OR_RETURN(std::vector<DeviceBlocks> blocks,
                   tier_.device->Allocate(NumBlocks(layout_, options_), /*num_sequences=*/1));
  return std::make_unique<StagedTokens>(tier_, options_, std::move(blocks[0]), for_forks_,
                                        rows_counted_);
}

void StagedTokens::Reserve() {
  const size_t most = static_cast<size_t>(std::max(options_.token_budget, options_.candidates));
  copies_.reserve(CopiesPerRow(layout_) * most * static_cast<size_t>(layout_.num_kv_heads));
  plan_.found.reserve(most);
  plan_.fetches.reserve(most);
  plan_.evictions.reserve(static_cast<size_t>(NumSlots(options_)));
  slots_.reserve(most);
  for (std::vector<int32_t>& rows : rows_) {
    rows.reserve(static_cast<size_t>(options_.token_budget));
  }
}

void StagedTokens::BlockBases(const BlockTable& table, int num_tokens,
                              std::vector<std::byte*>* bases) {
  ++step_;
  num_tokens_ = num_tokens;
  const int num_blocks = layout_.blocks_for(num_tokens);
  blocks_.reserve(static_cast<size_t>(num_device_blocks_) + table.blocks.size());
  blocks_.resize(static_cast<size_t>(num_device_blocks_) + num_blocks);
  for (int b = 0; b < num_blocks; ++b) {
    blocks_[num_device_blocks_ + b] = tier_.host->block(table.blocks[b]);
  }
  if (!is_filled_) {
    Fill(num_tokens - 1);
  } else if ((num_tokens - 1) % layout_.block_size == 0) {
    MakeRoomFor(newest_block());
  }

  const int num_host_tokens = write_back_.num_host_tokens();
  bases->reserve(table.blocks.size());
  bases->resize(static_cast<size_t>(num_blocks));
  for (int b = 0; b < num_blocks; ++b) {
    const int end = std::min((b + 1) * layout_.block_size, num_tokens);
    (*bases)[b] = end <= num_host_tokens ? host_block(b) : place(b);
  }
}

void StagedTokens::Fill(int num_host_tokens) {
  write_back_.Reset(num_host_tokens);
  rows_counted_ = std::max(rows_counted_, num_host_tokens);
  is_filled_ = true;
  const int newest = newest_block();
  // The newest block's rows are read where the step's own is written, also before a Fetch.
  const int num_rows = num_host_tokens % layout_.block_size;
  if (num_rows > 0) {
    copies_.clear();
    for (int l = 0; l < layout_.num_layers; ++l) {
      for (int h = 0; h < layout_.num_kv_heads; ++h) {
        AppendRowCopies(layout_, l, h, {host_block(newest), 0}, {place(newest), 0}, num_rows,
                        &copies_);
      }
    }
    arrivals_.Send(0, copies_, /*is_prefetch=*/false);
    arrivals_.Await(0);
  }
  for (int l = 0; l < layout_.num_layers; ++l) {
    copies_.clear();
    const size_t offset = layout_.key_offset(l, 0);
    for (int b = 0; b < num_host_tokens / layout_.block_size; ++b) {
      if (!places_.holds(b, newest)) continue;
      copies_.push_back({.from = host_block(b) + offset,
                         .to = place(b) + offset,
                         .bytes = layout_.layer_bytes()});
    }
    arrivals_.Send(l, copies_, /*is_prefetch=*/false);
  }
  fills_arrive_ = true;
}

void StagedTokens::MakeRoomFor(int block) {
  const int leaving = block - places_.num_ring;
  if (leaving < places_.num_sink) return;
  write_back_.FinishUpTo((leaving + 1) * layout_.block_size);
  if (!fills_arrive_) return;
  for (int l = 0; l < layout_.num_layers; ++l) Await(l);
  fills_arrive_ = false;
}

void StagedTokens::Await(int layer) {
  arrivals_.Await(layer);
  for (SlotMap& map : maps(layer)) map.SetArrived();
}

StagedTokens::Middle StagedTokens::MiddleOf(absl::Span<const int32_t> tokens) const {
  const int sink_end = places_.num_sink * layout_.block_size;
  const int ring_begin = places_.ring_begin(newest_block()) * layout_.block_size;
  const auto at = [&](int token) {
    return static_cast<size_t>(std::lower_bound(tokens.begin(), tokens.end(), token) -
                               tokens.begin());
  };
  return {.begin = at(sink_end), .end = at(ring_begin)};
}

void StagedTokens::PlanHead(int layer, int kv_head, absl::Span<const int32_t> tokens,
                            absl::Span<const float> scores) {
  assert(tokens.empty() || tokens.back() < write_back_.num_host_tokens());
  SlotMap& map = maps(layer)[static_cast<size_t>(kv_head)];
  PlanFetch(tokens, scores, map.tokens(), map.num_free(), &plan_);
  map.Apply(plan_, tokens, scores, step_, &slots_);
  const int block_size = layout_.block_size;
  for (const int32_t i : plan_.fetches) {
    const int token = tokens[static_cast<size_t>(i)];
    const int row = slot_row(slots_[static_cast<size_t>(i)]);
    AppendRowCopies(layout_, layer, kv_head, {host_block(token / block_size), token % block_size},
                    {blocks_[row / block_size], row % block_size}, 1, &copies_);
  }
}

void StagedTokens::Prefetch(int layer, const TokenSelection& selection) {
  copies_.clear();
  for (int h = 0; h < selection.num_kv_heads; ++h) {
    const Middle middle = MiddleOf(selection.tokens_of(h));
    const size_t count = middle.end - middle.begin;
    PlanHead(layer, h, selection.tokens_of(h).subspan(middle.begin, count),
             selection.scores_of(h).subspan(middle.begin, count));
  }
  arrivals_.Send(layer, copies_, /*is_prefetch=*/true);
}

ResidentView StagedTokens::Fetch(int layer, const TokenSelection& selection, bool may_defer) {
  Await(layer);
  copies_.clear();
  bool waits = !may_defer;
  for (int h = 0; h < selection.num_kv_heads; ++h) {
    const absl::Span<const int32_t> tokens = selection.tokens_of(h);
    const Middle middle = MiddleOf(tokens);
    const size_t count = middle.end - middle.begin;
    PlanHead(layer, h, tokens.subspan(middle.begin, count),
             selection.scores_of(h).subspan(middle.begin, count));
    const int num_tokens = static_cast<int>(tokens.size());
    // A view is never empty.
    const bool leaves_out = may_defer && plan_.num_missing < num_tokens;
    if (plan_.num_missing > 0 && !leaves_out) waits = true;
    counters_.lookups += num_tokens;
    counters_.hits += num_tokens - plan_.num_missing;
    if (leaves_out) counters_.deferred += plan_.num_missing;
    ListRows(h, tokens, middle, leaves_out);
  }
  arrivals_.Send(layer, copies_, /*is_prefetch=*/false);
  if (waits) Await(layer);
  return {.blocks = blocks_.data(), .rows = row_lists_.data(), .num_rows = num_rows_.data()};
}

void StagedTokens::ListPlaces(absl::Span<const int32_t> tokens, std::vector<int32_t>* rows) const {
  const int block_size = layout_.block_size;
  for (const int32_t token : tokens) {
    rows->push_back(places_.place(token / block_size) * block_size + token % block_size);
  }
}

void StagedTokens::ListRows(int kv_head, absl::Span<const int32_t> tokens, Middle middle,
                            bool leaves_out) {
  std::vector<int32_t>* rows = &rows_[kv_head];
  rows->clear();
  ListPlaces(tokens.subspan(0, middle.begin), rows);
  for (size_t i = middle.begin; i < middle.end; ++i) {
    const bool is_missing = plan_.found[i - middle.begin] < 0;
    const int32_t slot = slots_[i - middle.begin];
    if (is_missing && leaves_out) continue;
    if (slot >= 0) {
      rows->push_back(slot_row(slot));
    } else {
      // More tokens than slots: read in place.
      rows->push_back(num_device_blocks_ * layout_.block_size + tokens[i]);
      counters_.host_to_device_bytes += static_cast<int64_t>(layout_.token_row_bytes());
    }
  }
  ListPlaces(tokens.subspan(middle.end), rows);
  row_lists_[kv_head] = rows->data();
  num_rows_[kv_head] = static_cast<int32_t>(rows->size());
}

void StagedTokens::EndStep() {
  const int end = num_tokens_ / layout_.block_size * layout_.block_size;
  if (end <= write_back_.num_started()) return;
  write_back_.Start(place(newest_block()), host_block(newest_block()), end);
}

void StagedTokens::BeginPrefill(int num_tokens) {
  for (int l = 0; l < layout_.num_layers; ++l) Await(l);
  for (SlotMap& map : maps_) map.Clear();
  fills_arrive_ = false;
  if (is_filled_) {
    if (num_tokens_ > write_back_.num_started()) {
      write_back_.Start(place(newest_block()), host_block(newest_block()), num_tokens_);
    }
    write_back_.FinishUpTo(num_tokens_);
    rows_counted_ = std::max(rows_counted_, num_tokens_);
    is_filled_ = false;
  }
  // The prefill's own rows are computed on the device and go to the host tier.
  counters_.device_to_host_bytes +=
      static_cast<int64_t>(layout_.token_bytes()) * std::max(0, num_tokens - rows_counted_);
  rows_counted_ = std::max(rows_counted_, num_tokens);
}

absl::Status Validate(const ResidentOptions& options) {
  if (options.token_budget < 1) {
    return InvalidArgumentError("token_budget is {}, must be at least 1", options.token_budget);
  }
  if (options.candidates < 0 || options.sink_tokens < 0 || options.local_window < 0) {
    return InvalidArgumentError(
        "candidates, sink_tokens and local_window are {}, {} and {}, must be at least 0",
        options.candidates, options.sink_tokens, options.local_window);
  }
  if (options.selections_kept < 1 || options.selections_kept > kMaxSelectionsKept) {
    return InvalidArgumentError("selections_kept is {}, must be in [1, {}]",
                                options.selections_kept, kMaxSelectionsKept);
  }
  if (options.num_forks < 0) {
    return InvalidArgumentError("num_forks is {}, must be at least 0", options.num_forks);
  }
  if (options.prediction_interval < 1) {
    return InvalidArgumentError("prediction_interval is {}, must be at least 1",
                                options.prediction_interval);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResidentTokens>> NewStagedTokens(const StagedTier& tier,
                                                                const ResidentOptions& options) {
  RETURN_IF_ERROR(Validate(options));
  return StagedTokens::New(tier, options);
}

int64_t StagedBytes(const KvLayout& layout, const ResidentOptions& options) {
  return StagedTokens::NumBlocks(layout, options) * static_cast<int64_t>(layout.block_bytes());
}

}  // namespace tokenbutler
