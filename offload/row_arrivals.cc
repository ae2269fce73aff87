#include "offload/row_arrivals.h"

namespace tokenbutler {

RowArrivals::RowArrivals(int num_layers, Transfers* transfers, OffloadCounters* counters)
    : transfers_(transfers), counters_(counters), layers_(static_cast<size_t>(num_layers)) {
  constexpr size_t kMostOnTheirWay = 4;  // by far the most of steps
  for (std::vector<Arrival>& layer : layers_) layer.reserve(kMostOnTheirWay);
}

RowArrivals::~RowArrivals() {
  for (const std::vector<Arrival>& layer : layers_) {
    for (const Arrival& arrival : layer) transfers_->Abandon(arrival.ticket);
  }
}

void RowArrivals::Send(int layer, absl::Span<const RowCopy> copies, bool is_prefetch) {
  if (copies.empty()) return;
  int64_t bytes = 0;
  for (const RowCopy& copy : copies) bytes += static_cast<int64_t>(copy.bytes);
  counters_->host_to_device_bytes += bytes;
  if (is_prefetch) {
    counters_->prefetched_bytes += bytes;
    ++counters_->prefetch_issued;
  }
  layers_[static_cast<size_t>(layer)].push_back(
      {.ticket = transfers_->Submit(TransferDirection::kHostToDevice, copies),
       .is_prefetch = is_prefetch});
}

void RowArrivals::Await(int layer) {
  std::vector<Arrival>& arrivals = layers_[static_cast<size_t>(layer)];
  bool is_late = false;
  for (const Arrival& arrival : arrivals) {
    const bool is_done = transfers_->IsDone(arrival.ticket);
    const Transfers::Times times = transfers_->Finish(arrival.ticket);
    counters_->transfer += times.took;
    if (is_done) continue;
    counters_->stall += times.waited;
    is_late |= arrival.is_prefetch;
  }
  if (is_late) ++counters_->prefetch_late;
  arrivals.clear();
}

}  // namespace tokenbutler
