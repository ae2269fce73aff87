#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "base/prefetch.h"
#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "engine/kernels/sparse_attention.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

constexpr size_t kLine = 64;
// What a task of the floor reads, and how far ahead of its reading it asks for rows.
constexpr size_t kFloorPieceRows = 2048;
constexpr size_t kFloorRowsAhead = 64;

// `budget` of `depth` rows in ascending order, in runs of `run_length` that begin at multiples of
// it.
std::vector<int32_t> ChooseRows(int depth, int budget, int run_length, std::mt19937* random) {
  std::vector<int32_t> runs(depth / run_length), chosen;
  std::iota(runs.begin(), runs.end(), 0);
  std::sample(runs.begin(), runs.end(), std::back_inserter(chosen), budget / run_length, *random);
  std::vector<int32_t> rows;
  for (const int32_t run : chosen) {
    for (int i = 0; i < run_length; ++i) rows.push_back(run * run_length + i);
  }
  return rows;
}

// A cache of several layers, and for each layer and KV head a list of rows of its own.
class GatherCase {
 public:
  GatherCase(const GatherOptions& o, int depth, int budget, Buffer* cache)
      : query_(static_cast<size_t>(o.num_heads) * o.head_dim, 0.1f), out_(query_.size()) {
    layout_ = {.num_layers = o.num_layers,
               .num_kv_heads = o.num_kv_heads,
               .head_dim = o.head_dim,
               .dtype = DType::kBF16,
               .group_blocks = KvLayout::kGroupBlocks};
    for (int b = 0; b < layout_.blocks_for(depth); ++b) {
      blocks_.push_back(cache->data() + layout_.block_offset(b));
    }
    std::mt19937 random(1);
    for (int i = 0; i < o.num_layers * o.num_kv_heads; ++i) {
      lists_.push_back(ChooseRows(depth, budget, o.run_length, &random));
      std::vector<const std::byte*>& keys = keys_.emplace_back();
      for (const int32_t row : lists_.back()) keys.push_back(Key(i, row));
    }
    for (const std::vector<int32_t>& list : lists_) {
      rows_.push_back(list.data());
      num_rows_.push_back(static_cast<int32_t>(list.size()));
    }
    params_.layout = layout_;
    params_.num_heads = o.num_heads;
    params_.softmax_scale = 1.0f / std::sqrt(static_cast<float>(o.head_dim));
  }

  absl::Status AllocateWorkspace() {
    const size_t floats =
        SparseAttentionWorkspaceFloats(1, params_.num_heads, params_.layout.head_dim);
    ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(floats * sizeof(float), MemoryKind::kHeap));
    params_.workspace = workspace_.as<float>();
    return absl::OkStatus();
  }

  double bytes_per_layer() const {
    return 2.0 * num_rows_[0] * layout_.num_kv_heads * static_cast<double>(layout_.row_bytes());
  }

  // Seconds per layer.
  double Attend(ComputePool& pool) {
    ComputePool::StepScope step(pool);
    const double start = NowSeconds();
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      const int first_list = layer * layout_.num_kv_heads;
      const SparseAttentionParams::Query query{.query = query_.data(),
                                               .blocks = blocks_.data(),
                                               .rows = &rows_[first_list],
                                               .num_rows = &num_rows_[first_list],
                                               .out = out_.data()};
      params_.queries = {&query, 1};
      params_.layer = layer;
      SparseAttention(params_, pool);
    }
    return (NowSeconds() - start) / layout_.num_layers;
  }

  // Seconds per layer to merely read the same rows, whose places are known: the floor.
  double Read(ComputePool& pool) {
    ComputePool::StepScope step(pool);
    const double start = NowSeconds();
    const size_t row_bytes = layout_.row_bytes();
    const auto read_rows = row_bytes == 128   ? &GatherCase::ReadRows<128>
                           : row_bytes == 256 ? &GatherCase::ReadRows<256>
                                              : &GatherCase::ReadRows<0>;
    const size_t num_rows = lists_[0].size();
    const auto pieces = static_cast<int>((num_rows + kFloorPieceRows - 1) / kFloorPieceRows);
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      pool.ParallelFor(layout_.num_kv_heads * pieces, [&](int task) {
        const int list = layer * layout_.num_kv_heads + task / pieces;
        const size_t begin = task % pieces * kFloorPieceRows;
        const size_t count = std::min(kFloorPieceRows, num_rows - begin);
        mix_ ^= (this->*read_rows)(&keys_[list][begin], count);
      });
    }
    return (NowSeconds() - start) / layout_.num_layers;
  }

 private:
  // Where the key of `row` is, for the layer and KV head of a list.
  const std::byte* Key(int list, int32_t row) const {
    const int layer = list / layout_.num_kv_heads, kv_head = list % layout_.num_kv_heads;
    return blocks_[row / layout_.block_size] + layout_.key_offset(layer, kv_head) +
           row % layout_.block_size * layout_.row_bytes();
  }

  // The exclusive or of all words of `count` key rows and their value rows. All keys, then all
  // values: on the machine measured a quarter faster than a key and its value in turns.
  // kRowBytes: the size of a row if the compiler is to know it (which counts), or 0.
  template <size_t kRowBytes>
  uint64_t ReadRows(const std::byte* const* keys, size_t count) const {
    using Words = uint64_t __attribute__((vector_size(kLine), aligned(1)));
    const size_t row_bytes = kRowBytes == 0 ? layout_.row_bytes() : kRowBytes;
    Words mix = {};
    for (const size_t offset : {size_t{0}, layout_.block_size * row_bytes}) {
      // Inlined by force: g++ takes a function that only fetches for one without effects and drops
      // its calls.
      const auto fetch = [&](size_t i) __attribute__((always_inline)) {
        const std::byte* row = keys[i] + offset;
        for (size_t at = 0; at < row_bytes; at += kLine) PrefetchToL2(row + at);
      };
      for (size_t i = 0; i < std::min(kFloorRowsAhead, count); ++i) fetch(i);
      for (size_t i = 0; i < count; ++i) {
        if (i + kFloorRowsAhead < count) fetch(i + kFloorRowsAhead);
        const std::byte* row = keys[i] + offset;
        for (size_t at = 0; at < row_bytes; at += kLine) {
          mix ^= *reinterpret_cast<const Words*>(row + at);
        }
      }
    }
    uint64_t result = 0;
    for (int i = 0; i < 8; ++i) result ^= mix[i];
    return result;
  }

  KvLayout layout_;
  SparseAttentionParams params_;
  std::vector<const std::byte*> blocks_;
  std::vector<std::vector<int32_t>> lists_;          // [layer][kv_head]
  std::vector<std::vector<const std::byte*>> keys_;  // where the rows of the lists are
  std::vector<const int32_t*> rows_;
  std::vector<int32_t> num_rows_;
  std::vector<float> query_, out_;
  Buffer workspace_;
  std::atomic<uint64_t> mix_{0};  // keeps the reads from being optimised away
};

}  // namespace

absl::StatusOr<Report> RunGather(const GatherOptions& o, ComputePool& pool) {
  ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(pool));
  Report report("gather", pool);
  report.SetFact("num_layers", o.num_layers);
  report.SetFact("run_length", o.run_length);
  for (const int depth : o.depths) {
    const KvLayout layout{.num_layers = o.num_layers,
                          .num_kv_heads = o.num_kv_heads,
                          .head_dim = o.head_dim,
                          .dtype = DType::kBF16,
                          .group_blocks = KvLayout::kGroupBlocks};
    const size_t bytes = layout.blocks_bytes(layout.blocks_for(depth));
    ASSIGN_OR_RETURN(Buffer cache, Buffer::Allocate(bytes, MemoryKind::kHugePage));
    std::memset(cache.data(), 0x3c, cache.size());  // bf16 0.0115
    for (const int budget : o.budgets) {
      if (budget < o.run_length || budget > depth) {
        return InvalidArgumentError("budgets: {} is not between run_length {} and depth {}", budget,
                                    o.run_length, depth);
      }
      GatherCase gather(o, depth, budget, &cache);
      RETURN_IF_ERROR(gather.AllocateWorkspace());
      std::vector<double> attend, read, bandwidth;
      for (int r = 0; r < o.repeats; ++r) {
        fmt::print(stderr, "\rgather: depth {} budget {} pass {}/{} ", depth, budget, r + 1,
                   o.repeats);
        // The probe evicts the rows before each of the two.
        bandwidth.push_back(probe.Measure());
        read.push_back(gather.Read(pool));
        bandwidth.push_back(probe.Measure());
        attend.push_back(gather.Attend(pool));
      }
      const double seconds = Median(attend);
      const double floor = Median(read);
      report.AddRow({{"depth", depth},
                     {"budget", budget},
                     {"us_per_layer", seconds * 1e6},
                     {"gb_s", gather.bytes_per_layer() / seconds / 1e9},
                     {"floor_us", floor * 1e6},
                     {"floor_gb_s", gather.bytes_per_layer() / floor / 1e9},
                     {"probe_gb_s", Median(bandwidth) / 1e9},
                     {"time_over_floor", seconds / floor}});
    }
  }
  fmt::print(stderr, "\n");
  return report;
}

}  // namespace tokenbutler
