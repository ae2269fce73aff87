#include <cstring>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "bench/scan_projected.h"
#include "bench/scan_shape.h"
#include "engine/kernels/sketch_scan.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

// The sketches of all layers and KV heads of one sequence, and a query for each.
class ScanCase {
 public:
  ScanCase(const ScanShape& shape, int bits, int depth, int k)
      : shape_(shape), layout_{.head_dim = shape.head_dim, .bits = bits}, depth_(depth), k_(k) {}

  absl::Status Fill() {
    const size_t num_heads = shape_.num_heads();
    const size_t run_bytes = num_blocks() * layout_.record_bytes();
    ASSIGN_OR_RETURN(records_, Buffer::Allocate(num_heads * run_bytes, MemoryKind::kHugePage));
    ASSIGN_OR_RETURN(const Buffer distinct, RandomRecords());
    for (size_t i = 0; i < num_heads * num_blocks(); ++i) {
      std::memcpy(records_.data() + i * layout_.record_bytes(),
                  distinct.data() + random_() % kDistinctBlocks * layout_.record_bytes(),
                  layout_.record_bytes());
    }
    for (size_t i = 0; i < num_heads; ++i) runs_.push_back(records_.data() + i * run_bytes);
    queries_ = RandomNormals(num_heads * shape_.group_size * shape_.head_dim, &random_);
    tokens_.resize(num_heads * (k_ + 16));
    for (size_t i = 0; i < num_heads; ++i) {
      heads_.push_back(
          {.keys = {.runs = &runs_[i], .blocks_per_run = static_cast<int>(num_blocks())},
           .queries = queries_.data() + i * shape_.group_size * shape_.head_dim,
           .end = depth_,
           .k = k_,
           .tokens = tokens_.data() + i * (k_ + 16)});
    }
    scores_.resize(static_cast<size_t>(shape_.num_kv_heads) * depth_);
    const size_t bytes = SketchScanWorkspaceBytes(LayerHeads(0));
    ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(bytes, MemoryKind::kHugePage));
    return absl::OkStatus();
  }

  // The next step's queries: much like the last one's.
  void MoveQueries() {
    const std::vector<float> change = RandomNormals(queries_.size(), &random_);
    for (size_t i = 0; i < queries_.size(); ++i) {
      queries_[i] = 0.95f * queries_[i] + 0.3f * change[i];
    }
  }

  // Seconds of a pass over all layers.
  double Scores(ComputePool& pool) {
    std::vector<SketchScoresParams::Head> heads(shape_.num_kv_heads);
    return ForEachLayer(pool, [&](absl::Span<SketchScanParams::Head> layer) {
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        heads[h] = {.keys = layer[h].keys,
                    .queries = layer[h].queries,
                    .end = depth_,
                    .scores = scores_.data() + static_cast<size_t>(h) * depth_};
      }
      SketchScores({.layout = layout_,
                    .group_size = shape_.group_size,
                    .softmax_scale = 0.125f,
                    .heads = heads},
                   pool);
    });
  }
  // `block_fraction` of the blocks, in runs of one: a partial scan's, that no prefetcher foresees.
  double Scan(double block_fraction, ComputePool& pool) {
    const std::vector<int32_t> blocks = BlocksOf(block_fraction);
    for (SketchScanParams::Head& head : heads_) {
      head.blocks.reset();
      if (block_fraction < 1) head.blocks = absl::MakeConstSpan(blocks);
    }
    return ForEachLayer(pool, [&](absl::Span<SketchScanParams::Head> layer) {
      SketchScan({.layout = layout_,
                  .group_size = shape_.group_size,
                  .softmax_scale = 0.125f,
                  .heads = layer,
                  .workspace = workspace_.data()},
                 pool);
    });
  }

  // What a pass has to read.
  double bytes(double block_fraction) const {
    const double blocks = static_cast<double>(heads_.size()) * static_cast<double>(num_blocks());
    return blocks * block_fraction * static_cast<double>(layout_.record_bytes());
  }

 private:
  size_t num_blocks() const { return depth_ / layout_.block_size; }
  std::vector<int32_t> BlocksOf(double fraction) const {
    std::vector<int32_t> blocks;
    for (size_t b = 0; b < num_blocks(); ++b) {
      const auto before = static_cast<size_t>(static_cast<double>(b) * fraction);
      const auto after = static_cast<size_t>(static_cast<double>(b + 1) * fraction);
      if (after > before) blocks.push_back(static_cast<int32_t>(b));
    }
    return blocks;
  }
  absl::Span<SketchScanParams::Head> LayerHeads(int layer) {
    return absl::MakeSpan(heads_).subspan(static_cast<size_t>(layer) * shape_.num_kv_heads,
                                          shape_.num_kv_heads);
  }

  absl::StatusOr<Buffer> RandomRecords() {
    ASSIGN_OR_RETURN(Buffer records,
                     Buffer::Allocate(kDistinctBlocks * layout_.record_bytes(), MemoryKind::kHeap));
    for (int b = 0; b < kDistinctBlocks; ++b) {
      const std::vector<float> keys =
          RandomNormals(static_cast<size_t>(layout_.block_size) * layout_.head_dim, &random_);
      SketchKeys({.layout = layout_,
                  .keys = keys.data(),
                  .dtype = DType::kF32,
                  .key_stride_bytes = layout_.head_dim * sizeof(float),
                  .record = records.data() + b * layout_.record_bytes()});
    }
    return records;
  }

  template <class Fn>
  double ForEachLayer(ComputePool& pool, const Fn& fn) {
    ComputePool::StepScope step(pool);
    const double start = NowSeconds();
    for (int layer = 0; layer < shape_.num_layers; ++layer) fn(LayerHeads(layer));
    return NowSeconds() - start;
  }

  const ScanShape shape_;
  const SketchLayout layout_;
  const int depth_, k_;
  std::mt19937 random_{1};
  Buffer records_, workspace_;
  std::vector<const std::byte*> runs_;
  std::vector<float> queries_, scores_;
  std::vector<int32_t> tokens_;
  std::vector<SketchScanParams::Head> heads_;
};

}  // namespace

absl::StatusOr<Report> RunScan(const ScanOptions& o, ComputePool& pool) {
  ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(pool));
  Report report("scan", pool);
  report.SetFact("depth", o.depth);
  report.SetFact("k", o.k);
  for (const int group_size : o.group_sizes) {
    for (const int bits : o.bits) {
      ScanCase scan(ScanShape::Of(group_size), bits, o.depth, o.k);
      RETURN_IF_ERROR(scan.Fill());
      const auto measure = [&](double block_fraction, bool with_top_k) {
        fmt::print(stderr, "\rscan: group {}, {} bits, {} of the blocks ", group_size, bits,
                   block_fraction);
        std::vector<double> seconds, bandwidths;
        for (int r = 0; r < o.repeats; ++r) {
          bandwidths.push_back(probe.Measure());
          scan.MoveQueries();
          seconds.push_back(with_top_k ? scan.Scan(block_fraction, pool) : scan.Scores(pool));
        }
        const double median = Median(seconds), bandwidth = Median(bandwidths);
        const double bytes = scan.bytes(block_fraction);
        report.AddRow({{"group", group_size},
                       {"keys", fmt::format("bits{}", bits)},
                       {"blocks", block_fraction},
                       {"top_k", with_top_k},
                       {"ms", median * 1e3},
                       {"gb_s", bytes / median / 1e9},
                       {"probe_gb_s", bandwidth / 1e9},
                       {"time_over_read", median * bandwidth / bytes}});
      };
      measure(1, /*with_top_k=*/false);
      for (const double fraction : o.block_fractions) measure(fraction, /*with_top_k=*/true);
    }
  }
  RETURN_IF_ERROR(MeasureProjectedScans(o, probe, pool, &report));
  fmt::print(stderr, "\n");
  return report;
}

}  // namespace tokenbutler
