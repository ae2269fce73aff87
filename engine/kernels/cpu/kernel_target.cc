#include "engine/kernels/kernel_target.h"

#include <algorithm>
#include <atomic>

#include "hwy/targets.h"

namespace tokenbutler {
namespace {

// Highway's table has no AVX512_BF16; this is the extra bit beside its choice.
std::atomic<bool> bf16_allowed{true};

}  // namespace

void SetKernelTarget(CpuTarget target) {
  target = std::min(target, DetectCpuTarget());
  int64_t highway_targets = HWY_STATIC_TARGET;
  if (target >= CpuTarget::kAvx2) highway_targets |= HWY_AVX2;
  if (target >= CpuTarget::kAvx512) highway_targets |= HWY_AVX3;
  hwy::SetSupportedTargetsForTest(highway_targets);
  bf16_allowed.store(target == CpuTarget::kAvx512Bf16);
}

CpuTarget KernelTarget() {
  static const CpuTarget detected = DetectCpuTarget();
  const int64_t highway_targets = hwy::SupportedTargets();
  if ((highway_targets & HWY_AVX3) != 0) {
    const bool bf16 = detected == CpuTarget::kAvx512Bf16 && bf16_allowed.load();
    return bf16 ? CpuTarget::kAvx512Bf16 : CpuTarget::kAvx512;
  }
  return (highway_targets & HWY_AVX2) != 0 ? CpuTarget::kAvx2 : CpuTarget::kPortable;
}

}  // namespace tokenbutler
