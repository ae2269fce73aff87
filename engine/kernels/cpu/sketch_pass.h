#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/kernels/cpu/sketch_tiles.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// One task's walk over a piece of the records of one KV head, in batches of blocks. Pieces are
// aligned in the sequence and batches counted from their start, so that results depend on the
// head's range and its chosen blocks but not on the threads. Large: keeps what it needs in itself,
// on the stack of the thread that runs the task.
class SketchPass {
 public:
  // Blocks of a piece: pieces begin at multiples of this. A multiple of kSketchBatchBlocks.
  static int PieceBlocks(const SketchLayout& layout) {
    const int batch_tokens = layout.block_size * kSketchBatchBlocks;
    return kPieceTokens / batch_tokens * kSketchBatchBlocks;
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

  // Calls sink(Scores) for the sub-blocks of the piece that overlap the range.
  template <class Sink>
  void ScoreAll(int piece, const Sink& sink) {
    const int piece_blocks = PieceBlocks(layout_);
    const int end = std::min((piece + 1) * piece_blocks * sub_blocks_, (end_ + 15) / 16);
    const int begin = std::max(piece * piece_blocks * sub_blocks_, begin_ / 16);
    Clear();
    for (int block = begin / sub_blocks_, s = begin; s < end; ++block) {
      const int first = block * sub_blocks_;
      AddBlock(block);
      for (const int stop = std::min(first + sub_blocks_, end); s < stop; ++s) AddTile(s - first);
    }
    ScoreBatches(sink);
  }

  // The same for all sub-blocks of these blocks of the piece, ascending.
  template <class Sink>
  void ScoreBlocks(const int32_t* blocks, int num_blocks, const Sink& sink) {
    Clear();
    for (int i = 0; i < num_blocks; ++i) {
      const int first = blocks[i] * sub_blocks_;
      const int stop = std::min(first + sub_blocks_, (end_ + 15) / 16);
      AddBlock(blocks[i]);
      for (int s = std::max(first, begin_ / 16); s < stop; ++s) AddTile(s - first);
    }
    ScoreBatches(sink);
  }

 private:
  static constexpr int kPieceTokens = 16384;  // at least a batch of the largest blocks
  static constexpr int kMaxTiles = kPieceTokens / SketchLayout::kSubBlockTokens;
  static constexpr int kMaxBatchTokens = kSketchBatchBlocks * SketchLayout::kMaxBlockSize;
  static constexpr int kMaxGroups = 8;  // of kSketchHeads heads

  void Clear() { num_tiles_ = num_blocks_ = 0; }
  void AddBlock(int block) {
    blocks_[num_blocks_] = block;
    records_[num_blocks_] = keys_.record(layout_, block);
    tiles_of_block_[num_blocks_++] = 0;
  }
  // Adds a sub-block of the last block added.
  void AddTile(int sub_block) {
    const int block = num_blocks_ - 1;
    tiles_[num_tiles_] = records_[block] + layout_.codes_offset() + sub_block * tile_bytes_;
    positions_[num_tiles_++] = blocks_[block] * layout_.block_size + sub_block * 16;
    ++tiles_of_block_[block];
  }
  // Repeats the last record and the last tile as what kernels may load ahead.
  void EndLists();

  template <class Sink>
  void ScoreBatches(const Sink& sink) {
    EndLists();
    for (int first = 0, tile = 0; first < num_blocks_; first += kSketchBatchBlocks) {
      const int num_blocks = std::min(kSketchBatchBlocks, num_blocks_ - first);
      int num_tiles = 0;
      for (int b = first; b < first + num_blocks; ++b) num_tiles += tiles_of_block_[b];
      ScoreBatch(first, num_blocks, tile);
      sink(Scores{scores_, positions_ + tile, num_tiles});
      tile += num_tiles;
    }
  }
  // Of the lists: `num_blocks` blocks from `first_block` on, whose tiles begin at `first_tile`.
  void ScoreBatch(int first_block, int num_blocks, int first_tile);

  const SketchLayout layout_;
  const SketchedKeys keys_;
  const int begin_, end_;
  const int sub_blocks_;
  const size_t tile_bytes_;
  int num_groups_ = 0;

  // The blocks of the piece and the sub-blocks of each that are scored.
  int num_blocks_ = 0, num_tiles_ = 0;
  int blocks_[kMaxTiles];
  int tiles_of_block_[kMaxTiles];
  const std::byte* records_[kMaxTiles + kSketchBatchBlocks];
  const std::byte* tiles_[kMaxTiles + kSketchSmallTilesAhead];
  int32_t positions_[kMaxTiles];
  alignas(64) float scores_[kMaxBatchTokens];  // of a batch
  RoundedQueries rounded_;
  SketchHeads groups_[kMaxGroups];
};

}  // namespace tokenbutler
