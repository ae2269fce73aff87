#include "engine/selection/sketch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

class SketchScanner : public KeyScanner {
 public:
  SketchScanner(const AttentionParams& params, const KvLayout& layout, int num_layers)
      : sketch_(SketchLayoutFor(params, layout)),
        scan_fraction_(params.scan_fraction),
        num_sketched_(static_cast<size_t>(num_layers)) {}

  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<SketchScanner>(*this);
  }

  int Prepare(const LayerContext& context, int num_written) override {
    int& done = num_sketched_[context.layer];
    const int full = num_written / sketch_.block_size;
    const int num_kv_heads = context.layout->num_kv_heads;
    const int first = done;
    if (full > first) {
      context.pool->ParallelFor((full - first) * num_kv_heads, [&](int task) {
        const int block = first + task / num_kv_heads, head = task % num_kv_heads;
        SketchKeys({.layout = sketch_,
                    .keys = context.keys(head, block),
                    .dtype = context.layout->dtype,
                    .key_stride_bytes = context.layout->row_bytes(),
                    .record = context.record(head, block)});
      });
      done = full;
    }
    return done * sketch_.block_size;
  }

  void Scan(const LayerContext& context, const float* query, int begin, int end, int count,
            ScoredTokens* found) override {
    LayHeads(context, query, begin, end);
    SketchScores(params_, *context.pool);
    const int num_kv_heads = context.layout->num_kv_heads;
    indices_.resize(static_cast<size_t>(num_kv_heads) * (count + 16));
    context.pool->ParallelFor(num_kv_heads, [&](int h) {
      int32_t* indices = indices_.data() + static_cast<size_t>(h) * (count + 16);
      const int num_found = TopK(heads_[h].scores, end - begin, count, indices);
      for (int i = 0; i < num_found; ++i) {
        found->Add(h, begin + indices[i], heads_[h].scores[indices[i]]);
      }
    });
  }

  void Rescore(const LayerContext& context, const float* query, ScoredTokens* candidates) override {
    int begin = std::numeric_limits<int>::max(), end = 0;
    for (int h = 0; h < context.layout->num_kv_heads; ++h) {
      const absl::Span<const int32_t> tokens = candidates->tokens_of(h);
      if (tokens.empty()) continue;
      begin = std::min(begin, tokens.front());
      end = std::max(end, tokens.back() + 1);
    }
    if (begin >= end) return;
    LayHeads(context, query, begin, end);
    SketchScores(params_, *context.pool);
    for (int h = 0; h < context.layout->num_kv_heads; ++h) {
      const size_t at = static_cast<size_t>(h) * candidates->capacity;
      for (int i = 0; i < candidates->counts[h]; ++i) {
        candidates->scores[at + i] = heads_[h].scores[candidates->tokens[at + i] - begin];
      }
    }
  }

 private:
  // Points params_ at tokens [begin, end) of every KV head.
  void LayHeads(const LayerContext& context, const float* query, int begin, int end) {
    const int num_kv_heads = context.layout->num_kv_heads;
    const size_t size = static_cast<size_t>(end - begin);
    if (scores_.size() < num_kv_heads * size) scores_.resize(num_kv_heads * size);
    heads_.resize(static_cast<size_t>(num_kv_heads));
    for (int h = 0; h < num_kv_heads; ++h) {
      const int first_head = h * context.group_size;
      heads_[h] = {.keys = {.runs = context.state_blocks.data(),
                            .offset = context.state_layout->offset(context.layer, h, 0),
                            .blocks_per_run = context.state_layout->kv_blocks()},
                   .queries = query + static_cast<size_t>(first_head) * sketch_.head_dim,
                   .lse = context.lse == nullptr ? nullptr : context.lse + first_head,
                   .begin = begin,
                   .end = end,
                   .scores = scores_.data() + h * size};
    }
    params_ = {.layout = sketch_,
               .group_size = context.group_size,
               .softmax_scale = context.softmax_scale,
               .heads = heads_};
  }

  const SketchLayout sketch_;
  const float scan_fraction_;
  std::vector<int> num_sketched_;  // full blocks with a record, per layer
  std::vector<SketchScoresParams::Head> heads_;
  SketchScoresParams params_;
  std::vector<float> scores_;
  std::vector<int32_t> indices_;
};

}  // namespace

SketchLayout SketchLayoutFor(const AttentionParams& params, const KvLayout& layout) {
  const int bits = params.keys == KeyFormat::kBits1 ? 1 : params.keys == KeyFormat::kBits4 ? 4 : 2;
  return {.head_dim = layout.head_dim, .block_size = layout.block_size, .bits = bits};
}

std::unique_ptr<KeyScanner> NewSketchScanner(const AttentionParams& params, const KvLayout& layout,
                                             int num_layers) {
  return std::make_unique<SketchScanner>(params, layout, num_layers);
}

}  // namespace tokenbutler
