#pragma once

#include "bench/benchmarks.h"
#include "bench/cold_memory.h"

namespace tokenbutler {

// Adds the rows of `scan` for projected keys: the time in which the tokens of all layers are scored
// by int8 keys of each of options.projected_dims, beside that of reading them.
absl::Status MeasureProjectedScans(const ScanOptions& options, BandwidthProbe& probe,
                                   ComputePool& pool, Report* report);

}  // namespace tokenbutler
