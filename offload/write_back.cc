#include "offload/write_back.h"

#include <cassert>

#include "offload/row_copies.h"

namespace tokenbutler {

WriteBack::WriteBack(const KvLayout& layout, Transfers* transfers, OffloadCounters* counters)
    : layout_(layout), transfers_(transfers), counters_(counters) {
  copies_.reserve(CopiesPerRow(layout) * static_cast<size_t>(layout.num_layers) *
                  static_cast<size_t>(layout.num_kv_heads));
}

WriteBack::~WriteBack() {
  for (const Run& run : runs_) transfers_->Abandon(run.ticket);
}

int WriteBack::num_host_tokens() {
  while (!runs_.empty() && transfers_->IsDone(runs_.front().ticket)) FinishFirst(false);
  return num_done_;
}

void WriteBack::Start(const std::byte* device_block, std::byte* host_block, int end) {
  const int first_row = num_started_ % layout_.block_size;
  const int num_rows = end - num_started_;
  assert(num_rows > 0 && first_row + num_rows <= layout_.block_size);
  copies_.clear();
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    for (int h = 0; h < layout_.num_kv_heads; ++h) {
      AppendRowCopies(layout_, layer, h, {device_block, first_row}, {host_block, first_row},
                      num_rows, &copies_);
    }
  }
  counters_->device_to_host_bytes +=
      static_cast<int64_t>(layout_.token_bytes()) * int64_t{num_rows};
  runs_.push_back(
      {.end = end, .ticket = transfers_->Submit(TransferDirection::kDeviceToHost, copies_)});
  num_started_ = end;
}

void WriteBack::FinishUpTo(int num_tokens) {
  assert(num_tokens <= num_started_);
  while (num_done_ < num_tokens) FinishFirst(!transfers_->IsDone(runs_.front().ticket));
}

void WriteBack::FinishFirst(bool is_stall) {
  const Transfers::Times times = transfers_->Finish(runs_.front().ticket);
  counters_->transfer += times.took;
  if (is_stall) counters_->stall += times.waited;
  num_done_ = runs_.front().end;
  runs_.pop_front();
}

}  // namespace tokenbutler
