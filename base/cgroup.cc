#include "base/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

// The kernel writes "no limit" of cgroup v1 as LONG_MAX rounded down to a page.
constexpr int64_t kV1NoMemoryLimit = std::numeric_limits<int64_t>::max() / 2;

template <typename T>
void Tighten(std::optional<T>* limit, T value) {
  if (!limit->has_value() || value < **limit) *limit = value;
}

// The first whitespace-separated words of a file as numbers; "max" and anything else is absent.
std::vector<std::optional<int64_t>> ReadNumbers(const fs::path& file) {
  std::vector<std::optional<int64_t>> numbers;
  std::ifstream in(file);
  for (std::string word; numbers.size() < 2 && in >> word;) {
    std::optional<int64_t> number;
    if (word.find_first_not_of("-0123456789") == std::string::npos && word.size() < 20) {
      number = std::strtoll(word.c_str(), nullptr, 10);
    }
    numbers.push_back(number);
  }
  numbers.resize(2);
  return numbers;
}

// Calls visit(folder) for `base`/`group` and each folder above it down to `base`.
template <typename Visit>
void ForEachAncestor(const fs::path& base, std::string_view group, const Visit& visit) {
  fs::path relative = fs::path(group).relative_path();
  for (;;) {
    visit(base / relative);
    if (relative.empty()) return;
    relative = relative.parent_path();
  }
}

void ReadV2(const fs::path& base, std::string_view group, CgroupLimits* limits) {
  ForEachAncestor(base, group, [&](const fs::path& folder) {
    const auto cpu = ReadNumbers(folder / "cpu.max");  // "$QUOTA $PERIOD" in microseconds
    if (cpu[0].value_or(0) > 0 && cpu[1].value_or(0) > 0) {
      Tighten(&limits->cpus, static_cast<double>(*cpu[0]) / static_cast<double>(*cpu[1]));
    }
    const auto memory = ReadNumbers(folder / "memory.max");
    if (memory[0].value_or(0) > 0) Tighten(&limits->memory_bytes, *memory[0]);
  });
}

void ReadV1Cpu(const fs::path& base, std::string_view group, CgroupLimits* limits) {
  ForEachAncestor(base, group, [&](const fs::path& folder) {
    const auto quota = ReadNumbers(folder / "cpu.cfs_quota_us")[0];
    const auto period = ReadNumbers(folder / "cpu.cfs_period_us")[0];
    if (quota.value_or(0) > 0 && period.value_or(0) > 0) {
      Tighten(&limits->cpus, static_cast<double>(*quota) / static_cast<double>(*period));
    }
  });
}

void ReadV1Memory(const fs::path& base, std::string_view group, CgroupLimits* limits) {
  ForEachAncestor(base, group, [&](const fs::path& folder) {
    const auto bytes = ReadNumbers(folder / "memory.limit_in_bytes")[0];
    if (bytes.value_or(0) > 0 && *bytes < kV1NoMemoryLimit) Tighten(&limits->memory_bytes, *bytes);
  });
}

bool HasController(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

CgroupLimits ReadCgroupLimits(const fs::path& root) {
  CgroupLimits limits;
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream in(root / "proc/self/cgroup");
  // Lines are "hierarchy:controllers:group"; v2's is "0::group".
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      ReadV2(mount, group, &limits);
      ReadV2(mount / "unified", group, &limits);  // systemd's hybrid layout
    }
    if (HasController(controllers, "cpu")) {
      ReadV1Cpu(mount / "cpu", group, &limits);
      ReadV1Cpu(mount / "cpu,cpuacct", group, &limits);
    }
    if (HasController(controllers, "memory")) ReadV1Memory(mount / "memory", group, &limits);
  }
  return limits;
}

int64_t MemoryLimitBytes() {
  const int64_t machine =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  return std::min(machine, ReadCgroupLimits().memory_bytes.value_or(machine));
}

}  // namespace tokenbutler
