#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "base/compute_pool.h"
#include "base/status.h"

namespace tokenbutler {

// More than any cache holds: measurements of memory speed rotate over this much (server CPUs
// share up to 300 MB of L3 cache).
constexpr size_t kColdBytes = size_t{5} << 28;  // 1.25 GiB

// The speed at which `pool`'s threads together read memory that no cache holds.
class BandwidthProbe {
 public:
  // RESOURCE_EXHAUSTED when `bytes` of memory are not to be had. Takes a second: touches them all.
  static absl::StatusOr<BandwidthProbe> Create(ComputePool& pool, size_t bytes = kColdBytes);

  // Reads everything once; bytes per second. Also what evicts other data from the caches.
  double Measure();

 private:
  BandwidthProbe(ComputePool& pool, Buffer memory) : pool_(pool), memory_(std::move(memory)) {}

  ComputePool& pool_;
  Buffer memory_;
  uint64_t sink_ = 0;  // keeps the reads from being optimised away
};

// Seconds since some fixed moment, monotonic.
double NowSeconds();

}  // namespace tokenbutler
