#pragma once

#include "engine/kernels/linear.h"

namespace tokenbutler {

// Rows [out_begin, out_end) of y for bf16 x and bf16 weights by vdpbf16ps.
// REQUIRES: KernelTarget() == kAvx512Bf16.
void LinearRangeBf16Dot(const LinearParams& params, int out_begin, int out_end);

}  // namespace tokenbutler
