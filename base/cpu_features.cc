#include "base/cpu_features.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/cgroup.h"

namespace tokenbutler {

std::string_view CpuTargetName(CpuTarget target) {
  switch (target) {
    case CpuTarget::kPortable:
      return "portable";
    case CpuTarget::kAvx2:
      return "avx2";
    case CpuTarget::kAvx512:
      return "avx512";
    case CpuTarget::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

CpuTarget DetectCpuTarget() {
#if defined(__x86_64__)
  // The compiler's run-time support also asks the system whether it saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (!avx2) return CpuTarget::kPortable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) return CpuTarget::kAvx2;
  return __builtin_cpu_supports("avx512bf16") ? CpuTarget::kAvx512Bf16 : CpuTarget::kAvx512;
#else
  return CpuTarget::kPortable;
#endif
}

int DefaultNumThreads() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cpus = CPU_COUNT(&allowed);
  const CgroupLimits limits = ReadCgroupLimits();
  if (limits.cpus.has_value()) cpus = std::min(cpus, static_cast<int>(std::ceil(*limits.cpus)));
  return std::max(cpus, 1);
}

}  // namespace tokenbutler
