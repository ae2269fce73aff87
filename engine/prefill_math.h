#pragma once

#include <memory>

#include "base/compute_pool.h"
#include "engine/dense_math.h"

namespace tokenbutler {

// A prefill chunk's mathematics: LibTorch's matrix multiplication (bf16 or float32, straight from
// the weights' memory) and its flash attention, on LibTorch's own team; what goes row by row, on
// the pool. The two teams never work at the same time, and LibTorch's must not spin between its
// jobs (OMP_WAIT_POLICY=PASSIVE). Methods throw what LibTorch throws; the caller catches. One
// thread: the engine's.
class PrefillMath : public DenseMath {
 public:
  // `num_threads` of LibTorch's team, the caller's included. `pool` must outlive this.
  static std::unique_ptr<PrefillMath> Create(ComputePool& pool, int num_threads);
};

}  // namespace tokenbutler
