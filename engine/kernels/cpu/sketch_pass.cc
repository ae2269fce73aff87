#include "engine/kernels/cpu/sketch_pass.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/prefetch.h"
#include "engine/kernels/kernel_target.h"

namespace tokenbutler {
namespace {

bool UsesVnni() { return KernelTarget() >= CpuTarget::kAvx512 && HasVnni(); }
bool UsesTables(int bits) { return bits == 1 && KernelTarget() >= CpuTarget::kAvx512 && HasVbmi(); }

void Round(const SketchLayout& layout, const SketchHeads& heads, const std::byte* const* records,
           int num_blocks, RoundedQueries* rounded) {
  if (!UsesVnni()) return RoundQueries(layout, heads, records, num_blocks, rounded);
  const auto rounding = UsesTables(layout.bits) ? SketchRounding::kTables : SketchRounding::kScores;
  RoundQueriesVnni(layout, heads, records, num_blocks, rounding, rounded);
}

void ScoreTiles(const SketchTiles& tiles) {
  if (UsesTables(tiles.layout->bits)) return ScoreTilesVbmi(tiles);
  if (UsesVnni()) return ScoreTilesVnni(tiles);
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
      codes_ahead_(SketchCodesAhead(layout)) {
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

void SketchPass::TakePiece(int piece) {
  const int piece_blocks = PieceBlocks(layout_);
  const int from = std::max(piece * piece_blocks, begin_ / layout_.block_size);
  const int to = std::min((piece + 1) * piece_blocks, (end_ - 1) / layout_.block_size + 1);
  num_blocks_ = 0;
  for (int block = from; block < to; ++block) AddBlock(block);
  EndBlocks();
}

void SketchPass::TakeBlocks(const int32_t* blocks, int num_blocks) {
  num_blocks_ = 0;
  for (int i = 0; i < num_blocks; ++i) AddBlock(blocks[i]);
  EndBlocks();
}

void SketchPass::TakeNextBlocks(const SketchedKeys& keys, absl::Span<const int32_t> blocks) {
  if (blocks.empty()) return;
  const std::byte** next = records_ + num_blocks_;
  for (int i = 0; i < kSketchScalesAhead; ++i) {
    next[i] = keys.record(layout_, blocks[std::min(i, static_cast<int>(blocks.size()) - 1)]);
  }
}

void SketchPass::TakeNextPiece(const SketchedKeys& keys, int begin, int end, int piece) {
  std::array<int32_t, kSketchScalesAhead> blocks;
  const int from = std::max(piece * PieceBlocks(layout_), begin / layout_.block_size);
  const int to = std::min(from + kSketchScalesAhead, (end - 1) / layout_.block_size + 1);
  if (end <= begin || to <= from) return;
  std::iota(blocks.begin(), blocks.begin() + (to - from), from);
  TakeNextBlocks(keys, absl::MakeConstSpan(blocks.data(), to - from));
}

void SketchPass::EndBlocks() {
  if (num_blocks_ == 0) return;
  std::fill_n(records_ + num_blocks_, kSketchScalesAhead, records_[num_blocks_ - 1]);
  // What no batch before has begun to load.
  for (int b = 0; b < std::min(num_blocks_, kSketchScalesAhead); ++b) {
    const size_t to = b < codes_ahead_ ? layout_.record_bytes() : layout_.codes_offset();
    for (size_t at = 0; at < to; at += 64) PrefetchToL2(records_[b] + at);
  }
}

SketchPass::Scores SketchPass::ScoreBatch(int batch, float threshold) {
  const std::byte* const* records = records_ + batch * kSketchBatchBlocks;
  const int num_blocks = NumBlocks(batch);
  for (int group = 0; group < num_groups_; ++group) {
    Round(layout_, groups_[group], records, num_blocks, &rounded_);
    ScoreTiles({.layout = &layout_,
                .num_heads = groups_[group].num_heads,
                .num_blocks = num_blocks,
                .records = records,
                .codes_ahead = codes_ahead_,
                .queries = &rounded_,
                .accumulate = group > 0,
                .threshold = threshold,
                .scores = scores_,
                .passed = passed_});
  }
  const int sub_blocks = layout_.sub_blocks(), num_tiles = num_blocks * sub_blocks;
  for (int b = 0; b < num_blocks; ++b) {
    const int position = blocks_[batch * kSketchBatchBlocks + b] * layout_.block_size;
    int32_t* positions = positions_ + b * sub_blocks;
    for (int s = 0; s < sub_blocks; ++s)
      positions[s] = position + s * SketchLayout::kSubBlockTokens;
  }
  // Takes back what passed outside the range: of a few tiles at either end.
  for (int i = 0; i < num_tiles && positions_[i] < begin_; ++i) {
    const int outside = begin_ - positions_[i];
    passed_[i] &= outside >= SketchLayout::kSubBlockTokens ? 0 : 0xffff << outside;
  }
  for (int i = num_tiles - 1; i >= 0 && positions_[i] + SketchLayout::kSubBlockTokens > end_; --i) {
    const int inside = end_ - positions_[i];
    passed_[i] &= inside <= 0 ? 0 : (1 << inside) - 1;
  }
  return {.scores = scores_, .passed = passed_, .positions = positions_, .num_tiles = num_tiles};
}

}  // namespace tokenbutler
