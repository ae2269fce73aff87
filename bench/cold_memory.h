#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

  // Reads `rows_per_list` rows of `row_bytes` at random places, one in `spacing` rows, in ascending
  // order, and the same rows of a second region, each thread lists of its own: what attention does
  // with the keys and values of chosen tokens. Bytes per second. Call it after Measure(), which
  // leaves none of the rows in a cache. REQUIRES: row_bytes is a multiple of 64, and the rows of
  // one list fit into half of the memory.
  double MeasureGather(size_t row_bytes, int rows_per_list, int spacing);

 private:
  BandwidthProbe(ComputePool& pool, Buffer memory) : pool_(pool), memory_(std::move(memory)) {}

  ComputePool& pool_;
  Buffer memory_;
  std::vector<uint32_t> offsets_;  // of a list's rows, in rows; kept while its form is the same
  int offsets_spacing_ = 0;
  uint64_t sink_ = 0;  // keeps the reads from being optimised away
};

// Seconds since some fixed moment, monotonic.
double NowSeconds();

}  // namespace tokenbutler
