#pragma once

#include <memory>

#include "base/compute_pool.h"
#include "base/dtype.h"
#include "engine/prefill_attention.h"

namespace tokenbutler {

// PrefillAttentionKind::kLibTorch: what a block of rows attends to among its own keys is merged
// with what it attends to before them, by log-sum-exp. For bf16 it computes in bf16 where the CPU
// has AMX and in float32 elsewhere.
std::unique_ptr<PrefillAttention> CreateFlashAttention(DType compute_dtype, ComputePool& pool);

}  // namespace tokenbutler
