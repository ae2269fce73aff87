#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/kernels/cpu/element.h"
#include "engine/kernels/kernel_target.h"
#include "gtest/gtest.h"

namespace tokenbutler {

// The targets of this machine: kernels are tested on each.
inline std::vector<CpuTarget> RunnableTargets() {
  std::vector<CpuTarget> targets;
  for (int t = 0; t <= static_cast<int>(DetectCpuTarget()); ++t) {
    targets.push_back(static_cast<CpuTarget>(t));
  }
  return targets;
}

inline std::string TargetTestName(const testing::TestParamInfo<CpuTarget>& param) {
  return std::string(CpuTargetName(param.param));
}

// Runs a test's kernels on its target.
class KernelTest : public testing::TestWithParam<CpuTarget> {
 protected:
  void SetUp() override {
    SetKernelTarget(GetParam());
    ASSERT_EQ(KernelTarget(), GetParam());
  }
  void TearDown() override { SetKernelTarget(DetectCpuTarget()); }
};

// Normally distributed values, the same for the same seed.
inline std::vector<float> RandomFloats(size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// `values` in another element type, rounded.
inline std::vector<std::byte> Narrow(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) StoreElement(bytes.data(), dtype, i, values[i]);
  return bytes;
}

}  // namespace tokenbutler
