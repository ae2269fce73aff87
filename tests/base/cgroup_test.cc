#include "base/cgroup.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "base/cpu_features.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

// A made-up file system root.
class CgroupTest : public testing::Test {
 protected:
  CgroupTest() : root_(fs::path(testing::TempDir()) / "cgroup_test") { fs::remove_all(root_); }
  ~CgroupTest() override { fs::remove_all(root_); }

  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  const fs::path root_;
};

TEST_F(CgroupTest, NoFilesMeanNoLimits) {
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_FALSE(limits.cpus.has_value());
  EXPECT_FALSE(limits.memory_bytes.has_value());
}

TEST_F(CgroupTest, Version2TakesTheTightestAncestor) {
  Write("proc/self/cgroup", "0::/pod/box\n");
  Write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  Write("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/pod/memory.max", "9000000000\n");
  Write("sys/fs/cgroup/pod/box/memory.max", "8000000000\n");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_EQ(limits.cpus, 1.5);
  EXPECT_EQ(limits.memory_bytes, 8000000000);
}

TEST_F(CgroupTest, Version1ReadsQuotaAndMemory) {
  Write("proc/self/cgroup", "7:memory:/box\n3:cpu,cpuacct:/box\n0::/\n");
  Write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "400000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_EQ(limits.cpus, 4.0);
  EXPECT_EQ(limits.memory_bytes, 1073741824);
}

// In a container the path is the host's; the limits are at the mount's root.
TEST_F(CgroupTest, MountRootStandsForAHostPath) {
  Write("proc/self/cgroup", "0::/kubepods/pod1/box\n");
  Write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(ReadCgroupLimits(root_).cpus, 2.0);
}

TEST_F(CgroupTest, NonsenseIsNoLimit) {
  Write("proc/self/cgroup", "nonsense\n0::/\n:::::\n");
  Write("sys/fs/cgroup/cpu.max", "-1 0 what\n");
  Write("sys/fs/cgroup/memory.max", "99999999999999999999999999\n");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_FALSE(limits.cpus.has_value());
  EXPECT_FALSE(limits.memory_bytes.has_value());
}

TEST(CpuFeaturesTest, DefaultsAreSane) {
  EXPECT_GE(DefaultNumThreads(), 1);
  EXPECT_GT(MemoryLimitBytes(), 0);
  EXPECT_FALSE(CpuTargetName(DetectCpuTarget()).empty());
}

}  // namespace
}  // namespace tokenbutler
