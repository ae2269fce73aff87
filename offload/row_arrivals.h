#pragma once

#include <vector>

#include "absl/types/span.h"
#include "offload/resident_tokens.h"
#include "offload/transfer.h"

namespace tokenbutler {

// The rows on their way from the host tier to one sequence's part of the device tier, by layer: a
// layer waits for its own only. Engine thread only.
class RowArrivals {
 public:
  // `transfers` and `counters` must outlive this; what is moved and waited for is counted there.
  RowArrivals(int num_layers, Transfers* transfers, OffloadCounters* counters);
  RowArrivals(const RowArrivals&) = delete;
  RowArrivals& operator=(const RowArrivals&) = delete;
  // Leaves when no row of these is on its way any more.
  ~RowArrivals();

  // Starts one transfer of a layer's rows; none when there is nothing to copy.
  void Send(int layer, absl::Span<const RowCopy> copies, bool is_prefetch);
  // Waits for what is on its way to the layer.
  void Await(int layer);

 private:
  struct Arrival {
    TransferTicket ticket;
    bool is_prefetch = false;
  };

  Transfers* const transfers_;
  OffloadCounters* const counters_;
  std::vector<std::vector<Arrival>> layers_;
};

}  // namespace tokenbutler
