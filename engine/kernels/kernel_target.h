#pragma once

#include "base/cpu_features.h"

namespace tokenbutler {

// The vectorised kernels pick the best CpuTarget at run time. This overrides the choice for the
// whole process: tests run every kernel on every target, and a flag can rule out a slow one.
// Targets above DetectCpuTarget() are lowered to it. Call it while no kernel runs.
void SetKernelTarget(CpuTarget target);

// The target kernels run on now.
CpuTarget KernelTarget();

}  // namespace tokenbutler
