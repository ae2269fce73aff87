#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/sketch_tiles.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// One task's walk over the records of one KV head, in batches of blocks that are aligned in the
// sequence, so that a task's results depend on the head's range but not on how it was cut.
// Large: keeps what it needs in itself, on the stack of the thread that runs the task.
class SketchPass {
 public:
  // Tasks begin at multiples of this many blocks.
  static int TaskBlocks(const SketchLayout& layout) {
    constexpr int kTaskTokens = 8192;
    const int batch_tokens = layout.block_size * kSketchBatchBlocks;
    return std::max(1, kTaskTokens / batch_tokens) * kSketchBatchBlocks;
  }

  // `queries`, `lse`, [begin, end): as in SketchScoresParams::Head.
  SketchPass(const SketchLayout& layout, int group_size, float softmax_scale,
             const SketchedKeys& keys, const float* queries, const float* lse, int begin, int end);

  // What a batch of sub-blocks gave.
  struct Scores {
    const float* scores;       // [num_tiles][16], 64-byte aligned
    const int32_t* positions;  // [num_tiles] of the first token of each sub-block
    int num_tiles;
  };

  // Calls sink(Scores) for the sub-blocks of blocks [first, last) that overlap the range.
  template <class Sink>
  void ScoreBlocks(int first, int last, const Sink& sink) {
    const int sub_begin = std::max(first * sub_blocks_, begin_ / 16);
    const int sub_end = std::min(last * sub_blocks_, (end_ + 15) / 16);
    const auto sub_block = [=](int i) { return sub_begin + i; };
    Walk(sub_block, std::max(0, sub_end - sub_begin), sink);
  }

  // The same for these sub-blocks, ascending.
  template <class Sink>
  void ScoreSubBlocks(const int32_t* sub_blocks, int num_sub_blocks, const Sink& sink) {
    Walk([=](int i) { return sub_blocks[i]; }, num_sub_blocks, sink);
  }

  // Writes the estimates of the sub-blocks of blocks [first, last) that overlap the range; the
  // first one in the range goes to estimates[0].
  void Estimate(int first, int last, float* estimates);

 private:
  static constexpr int kMaxTiles =
      kSketchBatchBlocks * SketchLayout::kMaxBlockSize / SketchLayout::kSubBlockTokens;
  static constexpr int kMaxGroups = 8;  // of kSketchHeads heads

  template <class SubBlock, class Sink>
  void Walk(const SubBlock& sub_block, int num_sub_blocks, const Sink& sink) {
    for (int i = 0; i < num_sub_blocks;) {
      const int batch = sub_block(i) / sub_blocks_ / kSketchBatchBlocks;
      const int batch_end = (batch + 1) * kSketchBatchBlocks * sub_blocks_;
      BeginBatch();
      for (; i < num_sub_blocks && sub_block(i) < batch_end; ++i) AddTile(sub_block(i));
      FetchRecords(batch + 1);
      for (int ahead = 0; ahead < kSketchTilesAhead; ++ahead) {
        tiles_[num_tiles_ + ahead] = CodesOf(sub_block(std::min(i + ahead, num_sub_blocks - 1)));
      }
      ScoreBatch();
      sink(Scores{scores_, positions_, num_tiles_});
    }
  }

  void BeginBatch() { num_tiles_ = num_blocks_ = 0; }
  void AddTile(int sub_block) {
    const int block = sub_block / sub_blocks_;
    if (num_blocks_ == 0 || block != last_block_) {
      last_block_ = block;
      records_[num_blocks_] = keys_.record(layout_, block);
      tiles_of_block_[num_blocks_++] = 0;
    }
    tiles_[num_tiles_] = records_[num_blocks_ - 1] + layout_.codes_offset() +
                         (sub_block - block * sub_blocks_) * tile_bytes_;
    positions_[num_tiles_++] = sub_block * 16;
    ++tiles_of_block_[num_blocks_ - 1];
  }
  const std::byte* CodesOf(int sub_block) const {
    return keys_.record(layout_, sub_block / sub_blocks_) + layout_.codes_offset() +
           sub_block % sub_blocks_ * tile_bytes_;
  }
  // Begins to load the scales and zeros of a batch of blocks.
  void FetchRecords(int batch) const;
  void ScoreBatch();

  const SketchLayout layout_;
  const SketchedKeys keys_;
  const int begin_, end_;
  const int sub_blocks_;
  const size_t tile_bytes_;
  int num_groups_ = 0;

  int num_blocks_ = 0, num_tiles_ = 0, last_block_ = 0;  // of the batch
  const std::byte* records_[kSketchBatchBlocks];
  int tiles_of_block_[kSketchBatchBlocks];
  const std::byte* tiles_[kMaxTiles + kSketchTilesAhead];
  int32_t positions_[kMaxTiles];
  alignas(64) float scores_[(kMaxTiles + 1) * 16];
  RoundedQueries rounded_;
  SketchHeads groups_[kMaxGroups];
};

}  // namespace tokenbutler
