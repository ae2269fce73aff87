#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/kernels/cpu/sketch_tiles.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// One task's walk over a piece of the records of one KV head, in batches of blocks. Pieces are
// aligned in the sequence, or in the list of the chosen blocks, and batches counted from their
// first block, so that results depend on the head's range and its chosen blocks but not on the
// threads. Large: keeps what it needs in itself, on the stack of the thread that runs the task.
class SketchPass {
 public:
  static constexpr int kMaxBatchTokens = kSketchBatchBlocks * SketchLayout::kMaxBlockSize;

  // Pieces are at least this long, whatever the layout; a range may begin or end within one.
  static constexpr int kMinPieceTokens = 4096;
  // Blocks of a piece: pieces begin at multiples of this. A multiple of kSketchBatchBlocks.
  static int PieceBlocks(const SketchLayout& layout) {
    const int batch_tokens = layout.block_size * kSketchBatchBlocks;
    return kPieceTokens / batch_tokens * kSketchBatchBlocks;
  }

  // `queries`, `lse`, [begin, end): as in SketchScoresParams::Head.
  SketchPass(const SketchLayout& layout, int group_size, float softmax_scale,
             const SketchedKeys& keys, const float* queries, const float* lse, int begin, int end);

  // The blocks of the batches to come: those of the piece that overlap the range,
  void TakePiece(int piece);
  // or these, at most PieceBlocks(), ascending, all of which overlap the range.
  void TakeBlocks(const int32_t* blocks, int num_blocks);

  // After that: where the thread will probably go on, in these keys, perhaps another head's.
  // Kernels begin to load it at the end.
  void TakeNextBlocks(const SketchedKeys& keys, absl::Span<const int32_t> blocks);
  void TakeNextPiece(const SketchedKeys& keys, int begin, int end, int piece);

  int num_batches() const { return (num_blocks_ + kSketchBatchBlocks - 1) / kSketchBatchBlocks; }
  int NumBlocks(int batch) const {
    return std::min(kSketchBatchBlocks, num_blocks_ - batch * kSketchBatchBlocks);
  }

  // What a batch gave: whole blocks, of which only what is in the range counts.
  struct Scores {
    const float* scores;       // [num_tiles][16], 64-byte aligned
    const uint16_t* passed;    // [num_tiles]; bit t: score t counts and is not below the threshold
    const int32_t* positions;  // [num_tiles] of the first token of each sub-block
    int num_tiles;
  };
  // Valid until the next call.
  Scores ScoreBatch(int batch, float threshold);

 private:
  // Whole batches of it make a piece: more than half, since the largest batch is no longer.
  static constexpr int kPieceTokens = 2 * kMinPieceTokens;
  static_assert(kMaxBatchTokens <= kPieceTokens);
  static constexpr int kMaxBlocks = kPieceTokens / SketchLayout::kSubBlockTokens;
  static constexpr int kMaxBatchTiles = kMaxBatchTokens / SketchLayout::kSubBlockTokens;
  static constexpr int kMaxGroups = 8;  // of kSketchHeads heads

  void AddBlock(int block) {
    blocks_[num_blocks_] = block;
    records_[num_blocks_++] = keys_.record(layout_, block);
  }
  // Repeats the last record as what kernels may load ahead.
  void EndBlocks();

  const SketchLayout layout_;
  const SketchedKeys keys_;
  const int begin_, end_;
  const int codes_ahead_;
  int num_groups_ = 0;

  int num_blocks_ = 0;
  int32_t blocks_[kMaxBlocks];
  const std::byte* records_[kMaxBlocks + kSketchScalesAhead];
  // Of a batch.
  alignas(64) float scores_[kMaxBatchTokens];
  uint16_t passed_[kMaxBatchTiles];
  int32_t positions_[kMaxBatchTiles];
  RoundedQueries rounded_;
  SketchHeads groups_[kMaxGroups];
};

// Writes what passed, in order, and where that is; returns how much. The outputs have room for 16
// more: vectors are stored whole.
int CollectPassed(const SketchPass::Scores& batch, float* scores, int32_t* positions);
// Without the positions.
int CopyPassed(const SketchPass::Scores& batch, float* scores);

}  // namespace tokenbutler
