#include <cmath>
#include <cstring>
#include <vector>

#include "base/buffer.h"
#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "engine/kernels/decode_attention.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

KvLayout LayoutOf(const DenseAttentionOptions& o) {
  return {.num_layers = 1,
          .num_kv_heads = o.num_kv_heads,
          .head_dim = o.head_dim,
          .dtype = DType::kBF16,
          .group_blocks = KvLayout::kGroupBlocks};
}

// One step's attention of one layer for `batch` sequences of `depth` tokens, on a cache that is
// larger than kColdBytes in all: the sequences of successive calls lie one after the other in it.
class AttentionCase {
 public:
  AttentionCase(const DenseAttentionOptions& o, int depth, int batch, const Buffer& cache)
      : query_(static_cast<size_t>(batch) * o.num_heads * o.head_dim, 0.1f), out_(query_.size()) {
    params_.layout = LayoutOf(o);
    params_.num_heads = o.num_heads;
    params_.softmax_scale = 1.0f / std::sqrt(static_cast<float>(o.head_dim));
    for (size_t count = 1; params_.layout.blocks_bytes(count) <= cache.size(); ++count) {
      blocks_.push_back(cache.data() + params_.layout.block_offset(count - 1));
    }
    blocks_per_query_ = params_.layout.blocks_for(depth);
    queries_.resize(batch);
    for (int i = 0; i < batch; ++i) {
      const size_t at = static_cast<size_t>(i) * o.num_heads * o.head_dim;
      queries_[i] = {.query = query_.data() + at, .context_len = depth, .out = out_.data() + at};
    }
  }

  absl::Status AllocateWorkspace() {
    const size_t floats = DecodeAttentionWorkspaceFloats(
        static_cast<int>(queries_.size()), params_.num_heads, params_.layout.head_dim);
    ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(floats * sizeof(float), MemoryKind::kHeap));
    params_.workspace = workspace_.as<float>();
    return absl::OkStatus();
  }

  double bytes_per_call() const {
    return static_cast<double>(queries_.size()) * queries_[0].context_len *
           static_cast<double>(params_.layout.token_bytes());
  }

  // Seconds of one call, averaged over one pass through the cache (at least one call).
  double Measure(ComputePool& pool) {
    const size_t blocks_per_call = blocks_per_query_ * queries_.size();
    const int num_calls = static_cast<int>(std::max<size_t>(1, blocks_.size() / blocks_per_call));
    ComputePool::StepScope step(pool);
    const double start = NowSeconds();
    for (int call = 0; call < num_calls; ++call) {
      for (size_t i = 0; i < queries_.size(); ++i) {
        queries_[i].blocks = &blocks_[call * blocks_per_call + i * blocks_per_query_];
      }
      params_.queries = queries_;
      DecodeAttention(params_, pool);
    }
    return (NowSeconds() - start) / num_calls;
  }

 private:
  DecodeAttentionParams params_;
  std::vector<DecodeAttentionParams::Query> queries_;
  std::vector<const std::byte*> blocks_;
  size_t blocks_per_query_ = 0;
  std::vector<float> query_, out_;
  Buffer workspace_;
};

}  // namespace

absl::StatusOr<Report> RunAttention(const DenseAttentionOptions& o, ComputePool& pool) {
  ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(pool));
  Report report("attention", pool);
  for (const int depth : o.depths) {
    for (const int batch : o.batches) {
      fmt::print(stderr, "\rattention: depth {} x {} ", depth, batch);
      const KvLayout layout = LayoutOf(o);
      const size_t needed =
          layout.blocks_bytes(static_cast<size_t>(layout.blocks_for(depth)) * batch);
      ASSIGN_OR_RETURN(Buffer cache,
                       Buffer::Allocate(std::max(kColdBytes, needed), MemoryKind::kHugePage));
      std::memset(cache.data(), 0x3c, cache.size());  // bf16 0.0115
      AttentionCase attention(o, depth, batch, cache);
      RETURN_IF_ERROR(attention.AllocateWorkspace());
      // In turns: memory that others use, too, is not equally fast all the time.
      std::vector<double> seconds, bandwidths;
      for (int r = 0; r < o.repeats; ++r) {
        bandwidths.push_back(probe.Measure());
        seconds.push_back(attention.Measure(pool));
      }
      const double median = Median(seconds);
      const double bandwidth = Median(bandwidths);
      const double bytes = attention.bytes_per_call();
      report.AddRow({{"depth", depth},
                     {"batch", batch},
                     {"us_per_layer", median * 1e6},
                     {"gb_s", bytes / median / 1e9},
                     {"probe_gb_s", bandwidth / 1e9},
                     {"time_over_read", median * bandwidth / bytes}});
    }
  }
  fmt::print(stderr, "\n");
  return report;
}

}  // namespace tokenbutler
