#include "bench/cold_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "base/prefetch.h"

namespace tokenbutler {
namespace {

constexpr size_t kTaskBytes = size_t{4} << 20;
constexpr size_t kStreams = 4;  // read side by side, as the kernels do
constexpr size_t kPrefetchBytes = 4096;
constexpr size_t kMostGathered = size_t{32} << 20;  // takes long enough to be timed

// The exclusive or of all words, [bytes] a multiple of kStreams * 64.
uint64_t ReadAll(const std::byte* data, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(64)));
  const size_t stream_bytes = bytes / kStreams;
  Words mix[kStreams] = {};
  for (size_t at = 0; at < stream_bytes; at += sizeof(Words)) {
    for (size_t s = 0; s < kStreams; ++s) {
      const std::byte* line = data + s * stream_bytes + at;
      PrefetchToL1(line + kPrefetchBytes);
      mix[s] ^= *reinterpret_cast<const Words*>(line);
    }
  }
  uint64_t result = 0;
  for (const Words& words : mix) {
    for (size_t i = 0; i < 8; ++i) result ^= words[i];
  }
  return result;
}

// The exclusive or of all words of the rows of `keys` and the same rows of `values`.
uint64_t ReadRows(const std::byte* keys, const std::byte* values, size_t row_bytes,
                  const std::vector<uint32_t>& rows) {
  using Words = uint64_t __attribute__((vector_size(64)));
  constexpr size_t kPrefetchRows = 64;
  Words mix[2] = {};
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kPrefetchRows < rows.size()) {
      const size_t next = rows[i + kPrefetchRows] * row_bytes;
      for (size_t at = next; at < next + row_bytes; at += sizeof(Words)) {
        PrefetchToL2(keys + at);
        PrefetchToL2(values + at);
      }
    }
    const size_t row = rows[i] * row_bytes;
    for (size_t at = row; at < row + row_bytes; at += sizeof(Words)) {
      mix[0] ^= *reinterpret_cast<const Words*>(keys + at);
      mix[1] ^= *reinterpret_cast<const Words*>(values + at);
    }
  }
  uint64_t result = 0;
  for (size_t i = 0; i < 8; ++i) result ^= mix[0][i] ^ mix[1][i];
  return result;
}

}  // namespace

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<BandwidthProbe> BandwidthProbe::Create(ComputePool& pool, size_t bytes) {
  bytes = (bytes + kTaskBytes - 1) / kTaskBytes * kTaskBytes;
  ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(bytes, MemoryKind::kHugePage));
  // Pages that were never written all map to one page of zeros.
  std::memset(memory.data(), 1, memory.size());
  return BandwidthProbe(pool, std::move(memory));
}

double BandwidthProbe::Measure() {
  std::atomic<uint64_t> mix{0};
  const double start = NowSeconds();
  {
    ComputePool::StepScope step(pool_);
    pool_.ParallelFor(static_cast<int>(memory_.size() / kTaskBytes), [&](int task) {
      mix ^= ReadAll(memory_.data() + task * kTaskBytes, kTaskBytes);
    });
  }
  const double seconds = NowSeconds() - start;
  sink_ ^= mix.load();
  return static_cast<double>(memory_.size()) / seconds;
}

double BandwidthProbe::MeasureGather(size_t row_bytes, int rows_per_list, int spacing) {
  if (static_cast<int>(offsets_.size()) != rows_per_list || offsets_spacing_ != spacing) {
    std::mt19937 random(1);
    offsets_.clear();
    for (int i = 0; i < rows_per_list; ++i) {
      offsets_.push_back(static_cast<uint32_t>(i) * spacing + random() % spacing);
    }
    offsets_spacing_ = spacing;
  }
  const size_t region_bytes = row_bytes * rows_per_list * spacing;  // a list's keys, or its values
  const size_t read_bytes = 2 * row_bytes * rows_per_list;
  const int num_lists = static_cast<int>(
      std::min(memory_.size() / (2 * region_bytes), kMostGathered / read_bytes + 1));
  std::atomic<uint64_t> mix{0};
  const double start = NowSeconds();
  {
    ComputePool::StepScope step(pool_);
    pool_.ParallelFor(num_lists, [&](int list) {
      const std::byte* keys = memory_.data() + 2 * list * region_bytes;
      mix ^= ReadRows(keys, keys + region_bytes, row_bytes, offsets_);
    });
  }
  const double seconds = NowSeconds() - start;
  sink_ ^= mix.load();
  return static_cast<double>(read_bytes) * num_lists / seconds;
}

}  // namespace tokenbutler
