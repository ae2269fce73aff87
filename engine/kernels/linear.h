#pragma once

#include "base/compute_pool.h"
#include "base/dtype.h"

namespace tokenbutler {

// y = x W^T + bias for a few rows, as fast as W can be read from memory: W is read once for each
// 16 rows of x, or 32 (CpuTarget::kAvx512Bf16).
struct LinearParams {
  const void* x = nullptr;  // [num_rows, in_features] x_dtype
  DType x_dtype = DType::kF32;
  const void* weight = nullptr;  // [out_features, in_features] weight_dtype, row-major
  DType weight_dtype = DType::kBF16;
  const float* bias = nullptr;  // [out_features], or null
  float* y = nullptr;           // [num_rows, out_features]; overlaps nothing
  int num_rows = 0;             // any number; 0 does nothing
  int in_features = 0;
  int out_features = 0;
};

// What is rounded, by (x_dtype, weight_dtype):
//   (float32, float32), (float32, bf16)  products and sums in float32; bf16 widens exactly.
//   (bf16, bf16)  x was rounded by the caller (RoundToBf16); products are exact in float32 and sums
//                 are float32. On CpuTarget::kAvx512Bf16 this is vdpbf16ps, which flushes
//                 subnormal inputs and results to zero.
// Other pairs are not supported.
//
// The order of each sum depends only on in_features, the dtypes and the target: a row's result is
// the same, bit for bit, whatever the other rows, their number, the position among them and the
// number of threads are.
void Linear(const LinearParams& params, ComputePool& pool);

// The specification: one sum per output in float64, rounded once.
void LinearPlain(const LinearParams& params);

// out[i] = x[i] rounded to bf16 (nearest even), i < num_elements.
void RoundToBf16(const float* x, int num_elements, BF16* out);
void RoundToBf16Plain(const float* x, int num_elements, BF16* out);

}  // namespace tokenbutler
