#include "engine/kernels/cpu/sketch_pass.h"

#include "engine/kernels/kernel_target.h"

namespace tokenbutler {
namespace {

void Round(const SketchLayout& layout, const SketchHeads& heads, const std::byte* const* records,
           int num_blocks, SketchRounding rounding, RoundedQueries* rounded) {
  if (KernelTarget() >= CpuTarget::kAvx512 && HasVnni()) {
    return RoundQueriesVnni(layout, heads, records, num_blocks, rounding, rounded);
  }
  RoundQueries(layout, heads, records, num_blocks, rounded);
}

bool UsesTables(int bits) { return bits == 1 && KernelTarget() >= CpuTarget::kAvx512 && HasVbmi(); }

void ScoreTiles(const SketchTiles& tiles) {
  if (UsesTables(tiles.bits)) return ScoreTilesVbmi(tiles);
  if (KernelTarget() >= CpuTarget::kAvx512 && HasVnni()) return ScoreTilesVnni(tiles);
  if (KernelTarget() >= CpuTarget::kAvx2) return ScoreTilesAvx2(tiles);
  ScoreTilesPortable(tiles);
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
      std::fill(scaled + layout.head_dim, scaled + (layout.head_dim + 63) / 64 * 64, 0.0f);
      group.lse[h] = lse == nullptr ? 0.0f : lse[first + h];
    }
  }
}

void SketchPass::EndLists() {
  if (num_blocks_ == 0) return;
  std::fill_n(records_ + num_blocks_, kSketchBatchBlocks, records_[num_blocks_ - 1]);
  if (num_tiles_ == 0) return;
  std::fill_n(tiles_ + num_tiles_, kSketchSmallTilesAhead, tiles_[num_tiles_ - 1]);
}

void SketchPass::ScoreBatch(int first_block, int num_blocks, int first_tile) {
  const auto rounding =
      UsesTables(layout_.bits) ? SketchRounding::kTables : SketchRounding::kScores;
  for (int group = 0; group < num_groups_; ++group) {
    Round(layout_, groups_[group], records_ + first_block, num_blocks, rounding, &rounded_);
    ScoreTiles({.padded_dim = layout_.padded_dim(),
                .bits = layout_.bits,
                .num_heads = groups_[group].num_heads,
                .num_blocks = num_blocks,
                .tiles_of_block = tiles_of_block_ + first_block,
                .tiles = tiles_ + first_tile,
                .fetch = records_ + first_block + num_blocks,
                .fetch_bytes = static_cast<int>(layout_.codes_offset()),
                .queries = &rounded_,
                .accumulate = group > 0,
                .scores = scores_});
  }
}

}  // namespace tokenbutler
