#include "engine/kernels/key_sketch.h"

#include <algorithm>

#include "engine/kernels/cpu/sketch_pass.h"

namespace tokenbutler {
namespace {

// Calls fn(pass, head) for the pieces of each head's range.
template <class Fn>
void ForEachPiece(const SketchScoresParams& p, ComputePool& pool, const Fn& fn) {
  const int piece_blocks = SketchPass::PieceBlocks(p.layout);
  const auto tasks_of = [&](const SketchScoresParams::Head& head) {
    if (head.end <= head.begin) return 0;
    return (head.end - 1) / p.layout.block_size / piece_blocks + 1;
  };
  int max_tasks = 0;
  for (const SketchScoresParams::Head& head : p.heads) {
    max_tasks = std::max(max_tasks, tasks_of(head));
  }
  const int num_tasks = static_cast<int>(p.heads.size()) * max_tasks;
  pool.ParallelFor(num_tasks, [&](int task) {
    const SketchScoresParams::Head& head = p.heads[task / max_tasks];
    const int piece = task % max_tasks;
    if (piece >= tasks_of(head)) return;
    if ((piece + 1) * piece_blocks * p.layout.block_size <= head.begin) return;
    SketchPass pass(p.layout, p.group_size, p.softmax_scale, head.keys, head.queries, head.lse,
                    head.begin, head.end);
    pass.TakePiece(piece);
    // What the thread does next as long as it has tasks of its own.
    const int next = task + 1;
    if (next < num_tasks) {
      const SketchScoresParams::Head& h = p.heads[next / max_tasks];
      pass.TakeNextPiece(h.keys, h.begin, h.end, next % max_tasks);
    }
    fn(pass, head);
  });
}

}  // namespace

void SketchScores(const SketchScoresParams& p, ComputePool& pool) {
  ForEachPiece(p, pool, [](SketchPass& pass, const SketchScoresParams::Head& head) {
    for (int b = 0; b < pass.num_batches(); ++b) {
      const SketchPass::Scores batch = pass.ScoreBatch(b, /*threshold=*/0);
      const int position = batch.positions[0];
      const int begin = std::max(position, head.begin);
      const int end = std::min(position + batch.num_tiles * 16, head.end);
      std::copy(batch.scores + (begin - position), batch.scores + (end - position),
                head.scores + (begin - head.begin));
    }
  });
}

}  // namespace tokenbutler
