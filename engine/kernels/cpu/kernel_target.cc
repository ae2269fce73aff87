#include "engine/kernels/kernel_target.h"

#include <algorithm>
#include <atomic>

#include "hwy/targets.h"

namespace tokenbutler {
namespace {

// What Highway will choose, and the extra bit its table lacks: AVX512_BF16.
CpuTarget ChosenTarget(bool allow_bf16) {
  const int64_t highway_targets = hwy::SupportedTargets();
  if ((highway_targets & HWY_AVX3) != 0) {
    const bool bf16 = allow_bf16 && DetectCpuTarget() == CpuTarget::kAvx512Bf16;
    return bf16 ? CpuTarget::kAvx512Bf16 : CpuTarget::kAvx512;
  }
  return (highway_targets & HWY_AVX2) != 0 ? CpuTarget::kAvx2 : CpuTarget::kPortable;
}

// Asked for by every kernel, so kept: finding out runs CPUID, which takes tens of microseconds in a
// virtual machine.
std::atomic<CpuTarget>& CurrentTarget() {
  static std::atomic<CpuTarget> target{ChosenTarget(/*allow_bf16=*/true)};
  return target;
}

}  // namespace

void SetKernelTarget(CpuTarget target) {
  target = std::min(target, DetectCpuTarget());
  int64_t highway_targets = HWY_STATIC_TARGET;
  if (target >= CpuTarget::kAvx2) highway_targets |= HWY_AVX2;
  if (target >= CpuTarget::kAvx512) highway_targets |= HWY_AVX3;
  hwy::SetSupportedTargetsForTest(highway_targets);
  CurrentTarget().store(ChosenTarget(target == CpuTarget::kAvx512Bf16), std::memory_order_relaxed);
}

CpuTarget KernelTarget() { return CurrentTarget().load(std::memory_order_relaxed); }

}  // namespace tokenbutler
