#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/queue.h"
#include "offload/transfer.h"

namespace tokenbutler {
namespace {

constexpr int kDirections = 2;

// One bounded queue per direction, each with threads of its own, so that rows on their way back
// never stand before rows that a layer waits for: a link is as wide one way as the other.
class TransferWorkers : public Transfers {
 public:
  explicit TransferWorkers(const TransferOptions& options)
      : options_(options),
        clock_(options.clock == nullptr ? &real_clock_ : options.clock),
        queues_{BoundedQueue<Entry*>(static_cast<size_t>(options.max_queued)),
                BoundedQueue<Entry*>(static_cast<size_t>(options.max_queued))} {}

  // std::system_error when the system refuses a thread; the destructor ends the others.
  void Start() {
    for (int i = 0; i < options_.num_workers; ++i) {
      threads_.emplace_back([this] { Work(TransferDirection::kHostToDevice); });
    }
    threads_.emplace_back([this] { Work(TransferDirection::kDeviceToHost); });
  }

  ~TransferWorkers() override {
    for (BoundedQueue<Entry*>& queue : queues_) queue.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  TransferTicket Submit(TransferDirection direction, absl::Span<const RowCopy> copies) override {
    TransferTicket ticket;
    if (free_.empty()) {
      ticket.entry = static_cast<int32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      ticket.entry = free_.back();
      free_.pop_back();
    }
    Entry* entry = &entries_[static_cast<size_t>(ticket.entry)];
    // A list grows at once to what the longest one needed: later it need not.
    most_copies_ = std::max(most_copies_, copies.size());
    entry->copies.reserve(most_copies_);
    entry->copies.assign(copies.begin(), copies.end());
    entry->copied = false;
    Schedule(direction, entry);
    queues_[static_cast<int>(direction)].Push(static_cast<Entry*>(entry), absl::InfiniteDuration());
    return ticket;
  }

  bool IsDone(TransferTicket ticket) const override {
    const Entry& entry = entries_[static_cast<size_t>(ticket.entry)];
    {
      MutexLock lock(&mutex_);
      if (!entry.copied) return false;
    }
    return !is_modelled() || clock_->Now() >= entry.arrival;
  }

  Times Finish(TransferTicket ticket) override {
    const absl::Time start = clock_->Now();
    Entry& entry = entries_[static_cast<size_t>(ticket.entry)];
    {
      MutexLock lock(&mutex_);
      while (!entry.copied) copied_.Wait(&mutex_);
      // Nobody signals the arrival: the wait ends by its timeout.
      while (is_modelled()) {
        const absl::Duration left = entry.arrival - clock_->Now();
        if (left <= absl::ZeroDuration()) break;
        copied_.WaitWithTimeout(&mutex_, left);
      }
    }
    free_.push_back(ticket.entry);
    return {.waited = clock_->Now() - start, .took = entry.took};
  }

  void Abandon(TransferTicket ticket) override {
    Entry& entry = entries_[static_cast<size_t>(ticket.entry)];
    {
      MutexLock lock(&mutex_);
      while (!entry.copied) copied_.Wait(&mutex_);
    }
    free_.push_back(ticket.entry);
  }

 private:
  // The engine thread fills it before it is queued; then its worker alone touches it until `copied`
  // is set under the mutex.
  struct Entry {
    std::vector<RowCopy> copies;
    absl::Time arrival;  // on the modelled link
    absl::Duration took;
    bool copied = false;  // guarded by mutex_
  };

  bool is_modelled() const { return options_.link_gbps > 0 || options_.link_latency_us > 0; }

  // When the modelled link delivers the transfer.
  void Schedule(TransferDirection direction, Entry* entry) {
    if (!is_modelled()) return;
    double bytes = 0;
    for (const RowCopy& copy : entry->copies) bytes += static_cast<double>(copy.bytes);
    const absl::Duration busy =
        options_.link_gbps > 0 ? absl::Nanoseconds(bytes / options_.link_gbps) : absl::Duration();
    const absl::Duration latency = absl::Microseconds(options_.link_latency_us);
    absl::Time& free_at = link_free_at_[static_cast<int>(direction)];
    free_at = std::max(clock_->Now(), free_at) + busy;
    entry->arrival = free_at + latency;
    entry->took = busy + latency;
  }

  void Work(TransferDirection direction) {
    while (std::optional<Entry*> entry =
               queues_[static_cast<int>(direction)].Pop(absl::InfiniteDuration())) {
      if (options_.before_copy != nullptr) options_.before_copy(direction);
      const absl::Time start = clock_->Now();
      for (const RowCopy& copy : (*entry)->copies) std::memcpy(copy.to, copy.from, copy.bytes);
      if (!is_modelled()) (*entry)->took = clock_->Now() - start;
      MutexLock lock(&mutex_);
      (*entry)->copied = true;
      copied_.SignalAll();
    }
  }

  const TransferOptions options_;
  const RealClock real_clock_;
  const Clock* const clock_;
  // Engine thread only, but for what is queued. A deque: entries never move.
  std::deque<Entry> entries_;
  std::vector<int32_t> free_;
  size_t most_copies_ = 0;  // of one transfer
  absl::Time link_free_at_[kDirections] = {absl::InfinitePast(), absl::InfinitePast()};
  mutable Mutex mutex_;
  CondVar copied_;
  BoundedQueue<Entry*> queues_[kDirections];
  std::vector<std::thread> threads_;
};

}  // namespace

absl::Status TransferOptions::Validate() const {
  if (num_workers < 1 || num_workers > 64) {
    return InvalidArgumentError("transfer.num_workers is {}, must be in [1, 64]", num_workers);
  }
  if (max_queued < 1 || max_queued > (1 << 20)) {
    return InvalidArgumentError("transfer.max_queued is {}, must be in [1, {}]", max_queued,
                                1 << 20);
  }
  if (!std::isfinite(link_gbps) || link_gbps < 0) {
    return InvalidArgumentError("link_gbps is {}, must be 0 or more", link_gbps);
  }
  if (!std::isfinite(link_latency_us) || link_latency_us < 0) {
    return InvalidArgumentError("link_latency_us is {}, must be 0 or more", link_latency_us);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transfers>> NewTransferWorkers(const TransferOptions& options) {
  RETURN_IF_ERROR(options.Validate());
  auto workers = std::make_unique<TransferWorkers>(options);
  try {
    workers->Start();
  } catch (const std::system_error& error) {
    return ResourceExhaustedError("cannot start {} transfer workers: {}", options.num_workers,
                                  error.what());
  }
  return workers;
}

}  // namespace tokenbutler
