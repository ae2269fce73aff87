#pragma once

#include "absl/functional/function_ref.h"
#include "base/compute_pool.h"
#include "base/tensor_view.h"
#include "engine/token_rows.h"

namespace tokenbutler {

// The part of a layer's mathematics that a decode step and a prefill chunk do differently: a decode
// step streams every weight from memory for a few rows, a prefill chunk multiplies large matrices.
// Implementations: DecodeMath (our kernels), PrefillMath (LibTorch). Engine thread only.
class DenseMath {
 public:
  virtual ~DenseMath() = default;

  // The threads that it works with.
  virtual ComputePool& pool() = 0;

  // y = x weight^T + bias, sums in float32.
  //   x [num_rows, in_features] of the weight's dtype; weight [out_features, in_features];
  //   bias [out_features] float32 or null; y [num_rows, out_features] float32.
  virtual void Linear(const void* x, const TensorView& weight, const float* bias, float* y,
                      int num_rows) = 0;

  // Calls fn(begin, end) for disjoint ranges that cover [0, num_rows), possibly on several threads.
  // `fn` must not throw, and must treat each row by itself.
  virtual void ForRows(int num_rows, absl::FunctionRef<void(int begin, int end)> fn) = 0;

  // Causal attention of every row over the cached tokens of its sequence, itself included; a
  // decode row whose sequence is sparse in this layer attends to what FetchTokens has laid out.
  // Reads the queries in activations().qkv and the KV cache, writes activations().attended.
  // `window`: tokens each row sees, itself included; 0: all.
  virtual void Attend(TokenRows& rows, int layer, int window) = 0;
};

}  // namespace tokenbutler
