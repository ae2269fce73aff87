#include "engine/kernels/cpu/sketch_pass.h"

#include "engine/kernels/kernel_target.h"

namespace tokenbutler {
namespace {

void ScoreTiles(const SketchTiles& tiles) {
  if (KernelTarget() >= CpuTarget::kAvx512 && HasVnni()) return ScoreTilesVnni(tiles);
  if (KernelTarget() >= CpuTarget::kAvx2) return ScoreTilesAvx2(tiles);
  ScoreTilesPortable(tiles);
}

void EstimateSubBlocks(const SketchStatistics& statistics) {
  if (KernelTarget() >= CpuTarget::kAvx512 && HasVnni()) return EstimateSubBlocksVnni(statistics);
  if (KernelTarget() >= CpuTarget::kAvx2) return EstimateSubBlocksAvx2(statistics);
  EstimateSubBlocksPortable(statistics);
}

void Fetch(const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

}  // namespace

SketchPass::SketchPass(const SketchLayout& layout, int group_size, float softmax_scale,
                       const SketchedKeys& keys, const float* queries, const float* lse, int begin,
                       int end)
    : layout_(layout),
      keys_(keys),
      begin_(begin),
      end_(end),
      sub_blocks_(layout.sub_blocks()),
      tile_bytes_(layout.sub_block_bytes()) {
  for (int first = 0; first < group_size; first += kSketchHeads) {
    SketchHeads& group = groups_[num_groups_++];
    group.num_heads = std::min(kSketchHeads, group_size - first);
    for (int h = 0; h < group.num_heads; ++h) {
      const float* query = queries + static_cast<size_t>(first + h) * layout.head_dim;
      float* scaled = group.queries[h];
      for (int c = 0; c < layout.head_dim; ++c) scaled[c] = query[c] * softmax_scale;
      for (int c = layout.head_dim; c < layout.padded_dim(); ++c) scaled[c] = 0;
      group.lse[h] = lse == nullptr ? 0.0f : lse[first + h];
    }
  }
}

void SketchPass::FetchRecords(int batch) const {
  const int end = std::min((batch + 1) * kSketchBatchBlocks, (end_ - 1) / layout_.block_size + 1);
  for (int block = batch * kSketchBatchBlocks; block < end; ++block) {
    Fetch(keys_.record(layout_, block), layout_.statistics_offset());
  }
}

void SketchPass::ScoreBatch() {
  for (int group = 0; group < num_groups_; ++group) {
    RoundQueries(layout_, groups_[group], records_, num_blocks_, /*with_squares=*/false, &rounded_);
    ScoreTiles({.padded_dim = layout_.padded_dim(),
                .bits = layout_.bits,
                .num_heads = groups_[group].num_heads,
                .num_blocks = num_blocks_,
                .tiles_of_block = tiles_of_block_,
                .tiles = tiles_,
                .queries = &rounded_,
                .accumulate = group > 0,
                .scores = scores_});
  }
}

void SketchPass::Estimate(int first, int last, float* estimates) {
  first = std::max(first, begin_ / layout_.block_size);
  last = std::min(last, (end_ - 1) / layout_.block_size + 1);
  for (int block = first; block < last; block += num_blocks_) {
    const int batch_end = (block / kSketchBatchBlocks + 1) * kSketchBatchBlocks;
    num_blocks_ = std::min(batch_end, last) - block;
    for (int b = 0; b < num_blocks_; ++b) records_[b] = keys_.record(layout_, block + b);
    const int next_end = std::min(last, batch_end + kSketchBatchBlocks);
    for (int next = batch_end; next < next_end; ++next) {
      Fetch(keys_.record(layout_, next), layout_.codes_offset());
    }
    for (int group = 0; group < num_groups_; ++group) {
      RoundQueries(layout_, groups_[group], records_, num_blocks_, /*with_squares=*/true,
                   &rounded_);
      EstimateSubBlocks({.layout = &layout_,
                         .num_heads = groups_[group].num_heads,
                         .num_blocks = num_blocks_,
                         .records = records_,
                         .queries = &rounded_,
                         .accumulate = group > 0,
                         .estimates = scores_});
    }
    const int sub_begin = std::max(block * sub_blocks_, begin_ / 16);
    const int sub_end = std::min((block + num_blocks_) * sub_blocks_, (end_ + 15) / 16);
    std::copy(scores_ + (sub_begin - block * sub_blocks_),
              scores_ + (sub_end - block * sub_blocks_), estimates + (sub_begin - begin_ / 16));
  }
}

}  // namespace tokenbutler
