#include "engine/selection/sketch.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/kernels/sketch_scan.h"
#include "engine/selection/aligned_bytes.h"
#include "engine/selection/best_blocks.h"

namespace tokenbutler {
namespace {

class SketchScanner : public KeyScanner {
 public:
  SketchScanner(const AttentionParams& params, const KvLayout& layout, int num_layers)
      : sketch_(SketchLayoutFor(params, layout)),
        scan_fraction_(params.scan_fraction),
        num_kv_heads_(layout.num_kv_heads),
        layers_(static_cast<size_t>(num_layers)) {}

  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<SketchScanner>(*this);
  }

  void Reserve(const KvLayout&, int, int max_tokens, int max_found) override {
    if (scan_fraction_ < 1) {
      const int max_blocks = max_tokens / sketch_.block_size + 1;
      for (Layer& layer : layers_) layer.best_blocks.Reserve(num_kv_heads_, max_blocks);
      BestBlocks::Reserve(num_kv_heads_, max_blocks, &block_masses_);
    }
    SketchScanParams::Head longest;
    longest.end = max_tokens;
    longest.k = max_found;
    scans_.assign(static_cast<size_t>(num_kv_heads_), longest);
    workspace_.SetRoom(SketchScanWorkspaceBytes(scans_));
  }

  int Prepare(const LayerContext& context, int num_written) override {
    int& done = layers_[context.layer].num_sketched;
    const int first = done, full = num_written / sketch_.block_size;
    if (full > first) {
      context.pool->ParallelFor((full - first) * num_kv_heads_, [&](int task) {
        const int block = first + task / num_kv_heads_, head = task % num_kv_heads_;
        const KvRows keys = context.keys(head, block);
        SketchKeys({.layout = sketch_,
                    .keys = keys.data,
                    .dtype = context.layout->dtype,
                    .key_stride_bytes = context.layout->row_bytes(),
                    .key_scales = keys.scales,
                    .record = context.record(head, block)});
      });
      done = full;
    }
    return done * sketch_.block_size;
  }

  int64_t Scan(const LayerContext& context, const float* query, int begin, int end, int count,
               ScanReach reach, ScoredTokens* found) override {
    Layer& layer = layers_[context.layer];
    const bool only_best = reach == ScanReach::kBestBlocks && layer.best_blocks.has_ranking();
    if (only_best) layer.best_blocks.AddUpTo((end - 1) / sketch_.block_size + 1);
    scans_.resize(static_cast<size_t>(num_kv_heads_));
    for (int h = 0; h < num_kv_heads_; ++h) {
      const size_t first_head = static_cast<size_t>(h) * context.group_size;
      const size_t at = static_cast<size_t>(h) * found->capacity;
      scans_[h] = {.keys = {.runs = context.state_blocks.data(),
                            .offset = context.state_layout->offset(context.layer, h, 0),
                            .blocks_per_run = context.state_layout->kv_blocks()},
                   .queries = query + first_head * sketch_.head_dim,
                   .lse = context.lse == nullptr ? nullptr : context.lse + first_head,
                   .begin = begin,
                   .end = end,
                   .k = count,
                   .tokens = found->tokens.data() + at,
                   .scores = found->scores.data() + at};
      if (only_best) scans_[h].blocks = layer.best_blocks.of(h);
    }
    SketchScan({.layout = sketch_,
                .group_size = context.group_size,
                .softmax_scale = context.softmax_scale,
                .heads = absl::MakeSpan(scans_),
                .workspace = workspace_.Reserve(SketchScanWorkspaceBytes(scans_))},
               *context.pool);
    int64_t num_scored = 0;
    for (int h = 0; h < num_kv_heads_; ++h) {
      found->counts[h] = scans_[h].num_selected;
      num_scored += SketchScanTokens(sketch_, scans_[h]);
    }
    if (scan_fraction_ < 1 && !only_best) {
      layer.best_blocks.Rank(*found, sketch_.block_size, scan_fraction_, begin, end, count,
                             &block_masses_, *context.pool);
    }
    return num_scored;
  }

 private:
  struct Layer {
    int num_sketched = 0;    // full blocks with a record
    BestBlocks best_blocks;  // as of the last scan of all; scan_fraction_ < 1
  };

  const SketchLayout sketch_;
  const float scan_fraction_;
  const int num_kv_heads_;
  std::vector<Layer> layers_;
  AlignedBytes workspace_;
  BestBlocks::Masses block_masses_;
  std::vector<SketchScanParams::Head> scans_;
};

}  // namespace

SketchLayout SketchLayoutFor(const AttentionParams& params, const KvLayout& layout) {
  const int bits = params.keys == KeyFormat::kBits1 ? 1 : params.keys == KeyFormat::kBits4 ? 4 : 2;
  return {.head_dim = layout.head_dim, .block_size = layout.block_size, .bits = bits};
}

int64_t SketchScannerBytes(const AttentionParams& params, const KvLayout& layout, int num_layers,
                           int max_tokens) {
  const int64_t kv_heads = layout.num_kv_heads;
  SketchScanParams::Head longest;
  longest.end = max_tokens;
  int64_t bytes =
      kv_heads * static_cast<int64_t>(SketchScanWorkspaceBytes(absl::MakeConstSpan(&longest, 1)));
  if (params.scan_fraction < 1) {
    const int max_blocks = max_tokens / layout.block_size + 1;
    bytes += BestBlocks::MostBytes(num_layers, layout.num_kv_heads, max_blocks);
  }
  return bytes;
}

std::unique_ptr<KeyScanner> NewSketchScanner(const AttentionParams& params, const KvLayout& layout,
                                             int num_layers) {
  return std::make_unique<SketchScanner>(params, layout, num_layers);
}

}  // namespace tokenbutler
