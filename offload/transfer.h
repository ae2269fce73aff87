#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"

namespace tokenbutler {

enum class TransferDirection { kHostToDevice, kDeviceToHost };

// A run of bytes on its way between the tiers.
struct RowCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};

// Names a transfer from Submit until Finish. A value; copies name the same transfer.
struct TransferTicket {
  int32_t entry = -1;
};

// Moves rows between the host tier and the device tier, asynchronously, in both directions at once.
// Transfers of one direction start in the order of Submit but may end in any. All sequences share
// the one link. Submit, IsDone, Finish and Abandon: engine thread only.
class Transfers {
 public:
  struct Times {
    absl::Duration waited;  // by Finish
    absl::Duration took;    // by the transfer: on the modelled link, else the copying itself
  };

  // Ends what is under way first.
  virtual ~Transfers() = default;

  // Starts one transfer: all copies, or none is done. The bytes must stay valid until Finish or
  // Abandon. The list itself may go. Waits only when so many transfers are under way that the queue
  // is full.
  virtual TransferTicket Submit(TransferDirection direction, absl::Span<const RowCopy> copies) = 0;

  // Whether Finish would return at once.
  virtual bool IsDone(TransferTicket ticket) const = 0;

  // Waits until the bytes have arrived. Each ticket is finished or abandoned once.
  virtual Times Finish(TransferTicket ticket) = 0;

  // For a ticket whose bytes nobody wants any more: returns when the transfer no longer touches
  // them, however long the modelled link would take.
  virtual void Abandon(TransferTicket ticket) = 0;
};

struct TransferOptions {
  // Threads that copy from the host tier to the device tier. [1, 64]. More help when one thread
  // cannot keep the link busy.
  int num_workers = 2;
  // Transfers under way in one direction before Submit waits. [1, 1048576].
  int max_queued = 4096;
  // Models a link of this bandwidth (10^9 bytes a second, per direction) and latency: a transfer
  // has arrived only after max(now, when the link is free) + bytes / bandwidth + latency. 0: as
  // fast as the copying is. What is measured with a model must be called modelled.
  double link_gbps = 0;
  double link_latency_us = 0;
  // What the modelled link and the counters go by; null: the real time. Must outlive the Transfers.
  const Clock* clock = nullptr;
  // For tests: a worker calls it before each transfer, from any of the threads.
  std::function<void(TransferDirection)> before_copy = nullptr;

  // INVALID_ARGUMENT naming field, value and bound.
  absl::Status Validate() const;
};

// Worker threads that copy memory (cpu/transfer_workers.cc). RESOURCE_EXHAUSTED when the system
// refuses the threads; errors of options.Validate().
absl::StatusOr<std::unique_ptr<Transfers>> NewTransferWorkers(const TransferOptions& options);

}  // namespace tokenbutler
