#pragma once

#include <memory>

#include "base/compute_pool.h"
#include "base/dtype.h"
#include "engine/token_rows.h"

namespace tokenbutler {

// How the attention of a prefill chunk is computed.
enum class PrefillAttentionKind {
  kBf16Blocks,   // blocks of keys: products of bf16, sums and softmax in float32
  kFloatBlocks,  // the same with products of float32
  kLibTorch,     // LibTorch's flash attention, on any CPU
};

// The fastest that this CPU, as far as KernelTarget() lets us use it, has for `compute_dtype`
// (kBF16 or kF32): bf16 products only for bf16, and only where the CPU has an instruction for them.
PrefillAttentionKind FastestPrefillAttention(DType compute_dtype);

// Causal attention of the rows of a prefill chunk. Owns workspaces that only grow. One thread: the
// engine's.
class PrefillAttention {
 public:
  virtual ~PrefillAttention() = default;

  // DenseMath::Attend. Throws what LibTorch throws.
  // REQUIRES: `rows` is one sequence's, of the compute dtype that this was created for.
  virtual void Attend(TokenRows& rows, int layer, int window) = 0;

  // `pool` must outlive this. REQUIRES: the CPU has what `kind` needs.
  static std::unique_ptr<PrefillAttention> Create(PrefillAttentionKind kind, DType compute_dtype,
                                                  ComputePool& pool);
};

}  // namespace tokenbutler
