#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/kernels/cpu/element.h"
#include "engine/kernels/kernel_target.h"
#include "engine/kernels/kv_row.h"
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

inline constexpr DType kKvDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8};

// `num_blocks` blocks of a KV cache, one after the other, every row of them random.
inline std::vector<std::byte> RandomCache(const KvLayout& layout, int num_blocks, unsigned seed) {
  std::vector<std::byte> cache(num_blocks * layout.block_bytes());
  const size_t head_dim = layout.head_dim;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(2 * head_dim);
  for (int b = 0; b < num_blocks; ++b) {
    std::byte* block = cache.data() + b * layout.block_bytes();
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      for (int h = 0; h < layout.num_kv_heads; ++h) {
        for (int row = 0; row < layout.block_size; ++row) {
          for (float& x : rows) x = normal(random);
          StoreKvRowPlain(rows.data(), rows.data() + head_dim, layout,
                          KvRowPlaceOf(layout, block, layer, h, row));
        }
      }
    }
  }
  return cache;
}

// Key rows outside of any cache.
struct NarrowKeys {
  std::vector<std::byte> bytes;  // [num_rows, head_dim]
  std::vector<float> pairs;      // [num_rows, kScalesPerToken]; empty without scales
  std::vector<float> exact;      // [num_rows, head_dim] what is stored, as float32

  const float* scales() const { return pairs.empty() ? nullptr : pairs.data(); }
};

inline NarrowKeys NarrowRows(const std::vector<float>& values, int head_dim, DType dtype) {
  const KvLayout row{.num_layers = 1, .num_kv_heads = 1, .head_dim = head_dim, .dtype = dtype};
  const size_t num_rows = values.size() / head_dim;
  NarrowKeys keys{.bytes = std::vector<std::byte>(num_rows * row.row_bytes()),
                  .pairs = std::vector<float>(row.has_scales() ? 2 * num_rows : 0),
                  .exact = std::vector<float>(values.size())};
  std::vector<std::byte> value(row.row_bytes());  // of no interest
  for (size_t r = 0; r < num_rows; ++r) {
    const float* x = values.data() + r * head_dim;
    StoreKvRowPlain(x, x, row,
                    {.key = keys.bytes.data() + r * row.row_bytes(),
                     .value = value.data(),
                     .scales = row.has_scales() ? &keys.pairs[2 * r] : nullptr});
  }
  LoadKvRowsPlain({.data = keys.bytes.data(), .scales = keys.scales()}, row,
                  static_cast<int>(num_rows), keys.exact.data());
  return keys;
}

}  // namespace tokenbutler
