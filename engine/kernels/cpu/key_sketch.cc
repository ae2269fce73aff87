#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

void SketchKeys(const SketchKeysParams& p) { SketchKeysPlain(p); }

void SketchScores(const SketchScoresParams& p, ComputePool& pool) {
  pool.ParallelFor(static_cast<int>(p.heads.size()), [&](int head) {
    SketchScoresParams one = p;
    one.heads = p.heads.subspan(head, 1);
    SketchScoresPlain(one);
  });
}

void SketchEstimates(const SketchScoresParams& p, ComputePool& pool) {
  pool.ParallelFor(static_cast<int>(p.heads.size()), [&](int head) {
    SketchScoresParams one = p;
    one.heads = p.heads.subspan(head, 1);
    SketchEstimatesPlain(one);
  });
}

}  // namespace tokenbutler
