#include "bench/cold_memory.h"

#include <atomic>
#include <chrono>
#include <cstring>
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

}  // namespace tokenbutler
