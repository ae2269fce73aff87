#include "bench/scan_projected.h"

#include <cstring>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "bench/scan_shape.h"
#include "engine/kernels/projected_keys.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

// The projected keys of all layers and KV heads of one sequence, and queries for each.
class ProjectedScan {
 public:
  ProjectedScan(const ScanShape& shape, int dim, int depth)
      : shape_(shape), layout_{.dim = dim}, depth_(depth) {}

  absl::Status Fill() {
    const size_t record_bytes = layout_.record_bytes();
    const size_t num_blocks = depth_ / layout_.block_size;
    ASSIGN_OR_RETURN(records_, Buffer::Allocate(shape_.num_heads() * num_blocks * record_bytes,
                                                MemoryKind::kHugePage));
    ASSIGN_OR_RETURN(const Buffer distinct, RandomRecords());
    for (size_t i = 0; i < shape_.num_heads() * num_blocks; ++i) {
      std::memcpy(records_.data() + i * record_bytes,
                  distinct.data() + random_() % kDistinctBlocks * record_bytes, record_bytes);
    }
    const size_t queries_per_head = static_cast<size_t>(shape_.group_size) * layout_.dim;
    queries_ = RandomNormals(shape_.num_heads() * queries_per_head, &random_);
    scores_.resize(static_cast<size_t>(shape_.num_kv_heads) * depth_);
    runs_.reserve(shape_.num_heads());  // heads point into it
    for (size_t i = 0; i < shape_.num_heads(); ++i) {
      runs_.push_back(records_.data() + i * num_blocks * record_bytes);
      heads_.push_back({.keys = {.runs = &runs_[i],
                                 .blocks_per_run = static_cast<int>(num_blocks),
                                 .stride = record_bytes},
                        .queries = queries_.data() + i * queries_per_head,
                        .end = depth_,
                        .scores = scores_.data() + i % shape_.num_kv_heads * depth_});
    }
    return absl::OkStatus();
  }

  // Seconds of a pass over all layers.
  double Scores(ComputePool& pool) {
    ComputePool::StepScope step(pool);
    const double start = NowSeconds();
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      ProjectedScores({.layout = layout_,
                       .group_size = shape_.group_size,
                       .scale = 0.25f,
                       .heads = absl::MakeConstSpan(heads_).subspan(
                           static_cast<size_t>(layer) * shape_.num_kv_heads, shape_.num_kv_heads)},
                      pool);
    }
    return NowSeconds() - start;
  }

  double bytes() const { return static_cast<double>(records_.size()); }

 private:
  absl::StatusOr<Buffer> RandomRecords() {
    ASSIGN_OR_RETURN(Buffer records,
                     Buffer::Allocate(kDistinctBlocks * layout_.record_bytes(), MemoryKind::kHeap));
    const std::vector<float> projection =
        RandomNormals(static_cast<size_t>(shape_.head_dim) * layout_.dim, &random_);
    std::vector<float> workspace(static_cast<size_t>(layout_.block_size) * layout_.dim);
    for (int b = 0; b < kDistinctBlocks; ++b) {
      const std::vector<float> keys =
          RandomNormals(static_cast<size_t>(layout_.block_size) * shape_.head_dim, &random_);
      ProjectKeys({.layout = layout_,
                   .keys = keys.data(),
                   .dtype = DType::kF32,
                   .key_stride_bytes = shape_.head_dim * sizeof(float),
                   .head_dim = shape_.head_dim,
                   .projection = projection.data(),
                   .record = records.data() + b * layout_.record_bytes(),
                   .workspace = workspace.data()});
    }
    return records;
  }

  const ScanShape shape_;
  const ProjectedLayout layout_;
  const int depth_;
  std::mt19937 random_{1};
  Buffer records_;
  std::vector<const std::byte*> runs_;
  std::vector<float> queries_, scores_;
  std::vector<ProjectedScoresParams::Head> heads_;
};

}  // namespace

absl::Status MeasureProjectedScans(const ScanOptions& o, BandwidthProbe& probe, ComputePool& pool,
                                   Report* report) {
  for (const int group_size : o.group_sizes) {
    for (const int dim : o.projected_dims) {
      fmt::print(stderr, "\rscan: group {}, {} projected dimensions ", group_size, dim);
      ProjectedScan scan(ScanShape::Of(group_size), dim, o.depth);
      RETURN_IF_ERROR(scan.Fill());
      std::vector<double> seconds, bandwidths;
      for (int r = 0; r < o.repeats; ++r) {
        bandwidths.push_back(probe.Measure());
        seconds.push_back(scan.Scores(pool));
      }
      const double median = Median(seconds), bandwidth = Median(bandwidths);
      report->AddRow({{"group", group_size},
                      {"keys", fmt::format("int8 x {}", dim)},
                      {"blocks", 1.0},
                      {"top_k", false},
                      {"ms", median * 1e3},
                      {"gb_s", scan.bytes() / median / 1e9},
                      {"probe_gb_s", bandwidth / 1e9},
                      {"time_over_read", median * bandwidth / scan.bytes()}});
    }
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
