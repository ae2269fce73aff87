#pragma once

#include <memory>
#include <optional>

#include "base/compute_pool.h"
#include "base/dtype.h"
#include "engine/dense_math.h"
#include "engine/prefill_attention.h"

namespace tokenbutler {

// A prefill chunk's mathematics: LibTorch's matrix multiplication (bf16 or float32, straight from
// the weights' memory) and a PrefillAttention. Each thread of the pool calls LibTorch for a piece
// of its own, and LibTorch's own team of threads stays out of it: that one spins between jobs and
// made everything beside it several times slower. Methods throw what LibTorch throws; the caller
// catches. One thread: the engine's.
class PrefillMath : public DenseMath {
 public:
  // `compute_dtype`: kBF16 or kF32. `pool` must outlive this. `attention`: unset, the fastest.
  static std::unique_ptr<PrefillMath> Create(
      DType compute_dtype, ComputePool& pool,
      std::optional<PrefillAttentionKind> attention = std::nullopt);
};

}  // namespace tokenbutler
