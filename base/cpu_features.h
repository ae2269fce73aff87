#pragma once

#include <string_view>

namespace tokenbutler {

// The instruction sets our kernels are built for, in rising order; one binary holds all.
enum class CpuTarget {
  kPortable,    // what every CPU of the architecture has (SSE2 on x86-64)
  kAvx2,        // AVX2, FMA, F16C, BMI2
  kAvx512,      // AVX-512 F, BW, CD, DQ, VL
  kAvx512Bf16,  // kAvx512 and AVX512_BF16 (vdpbf16ps)
};

std::string_view CpuTargetName(CpuTarget target);  // "portable", "avx2", "avx512", "avx512_bf16"

// The best target of this CPU and operating system.
CpuTarget DetectCpuTarget();

// CPUs that our threads should share: those this process may run on, bounded by the control
// group's CPU quota (rounded up). At least 1.
int DefaultNumThreads();

}  // namespace tokenbutler
