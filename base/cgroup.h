#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tokenbutler {

// What the control group of this process may use; absent where nothing limits it.
struct CgroupLimits {
  std::optional<double> cpus;           // CPU time per wall time, e.g. 1.5
  std::optional<int64_t> memory_bytes;  // resident memory of the whole group
};

// Reads cgroup v2 (cpu.max, memory.max) and v1 (cpu.cfs_quota_us, memory.limit_in_bytes) of this
// process: the tightest limit on the path from its group up to the root counts. Inside a container
// the group's path may name a folder that only the host sees; then the mount's root stands for it.
// Unreadable or malformed files count as no limit. `root` is "/" except in tests.
CgroupLimits ReadCgroupLimits(const std::filesystem::path& root = "/");

// Memory this process may use: the smaller of the machine's and the control group's, in bytes.
int64_t MemoryLimitBytes();

}  // namespace tokenbutler
