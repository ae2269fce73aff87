#include "bench/cold_memory.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

namespace tokenbutler {
namespace {

constexpr size_t kTaskBytes = size_t{4} << 20;
constexpr size_t kStreams = 4;  // read side by side, as the kernels do
constexpr size_t kPrefetchBytes = 4096;

// The exclusive or of all words, [bytes] a multiple of kStreams * 64.
uint64_t ReadAll(const std::byte* data, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(64)));
  const size_t stream_bytes = bytes / kStreams;
  Words mix[kStreams] = {};
  for (size_t at = 0; at < stream_bytes; at += sizeof(Words)) {
    for (size_t s = 0; s < kStreams; ++s) {
      const std::byte* line = data + s * stream_bytes + at;
      __builtin_prefetch(line + kPrefetchBytes);
      mix[s] ^= *reinterpret_cast<const Words*>(line);
    }
  }
  uint64_t result = 0;
  for (const Words& words : mix) {
    for (size_t i = 0; i < 8; ++i) result ^= words[i];
  }
  return result;
}

// The exclusive or of all words of the rows.
uint64_t ReadRows(const std::byte* data, size_t row_bytes, const std::vector<uint32_t>& rows) {
  using Words = uint64_t __attribute__((vector_size(64)));
  constexpr size_t kPrefetchRows = 64;
  Words mix = {};
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kPrefetchRows < rows.size()) {
      const std::byte* next = data + rows[i + kPrefetchRows] * row_bytes;
      for (size_t at = 0; at < row_bytes; at += sizeof(Words)) __builtin_prefetch(next + at);
    }
    const std::byte* row = data + rows[i] * row_bytes;
    for (size_t at = 0; at < row_bytes; at += sizeof(Words)) {
      mix ^= *reinterpret_cast<const Words*>(row + at);
    }
  }
  uint64_t result = 0;
  for (size_t i = 0; i < 8; ++i) result ^= mix[i];
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
  const size_t list_bytes = row_bytes * rows_per_list * spacing;
  const int num_lists = static_cast<int>(memory_.size() / list_bytes);
  std::atomic<uint64_t> mix{0};
  const double start = NowSeconds();
  {
    ComputePool::StepScope step(pool_);
    pool_.ParallelFor(num_lists, [&](int list) {
      mix ^= ReadRows(memory_.data() + list * list_bytes, row_bytes, offsets_);
    });
  }
  const double seconds = NowSeconds() - start;
  sink_ ^= mix.load();
  return static_cast<double>(row_bytes) * rows_per_list * num_lists / seconds;
}

}  // namespace tokenbutler
