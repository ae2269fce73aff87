#include "engine/kernels/kv_row.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

KvLayout LayoutOf(int head_dim, DType dtype) {
  return {
      .num_layers = 2, .num_kv_heads = 2, .head_dim = head_dim, .block_size = 3, .dtype = dtype};
}

// One int8 row, as stored and as read.
struct Int8Row {
  explicit Int8Row(const std::vector<float>& x)
      : codes(x.size()), values(x.size()), back(x.size()) {
    const KvLayout layout = LayoutOf(static_cast<int>(x.size()), DType::kI8);
    auto* key = reinterpret_cast<std::byte*>(codes.data());
    StoreKvRow(x.data(), x.data(), layout, {.key = key, .value = values.data(), .scales = scales});
    LoadKvRows({.data = key, .scales = scales}, layout, 1, back.data());
  }
  std::vector<int8_t> codes;
  std::vector<std::byte> values;
  std::vector<float> back;
  float scales[2];
};

using KvRowTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, KvRowTest, testing::ValuesIn(RunnableTargets()), TargetTestName);

TEST_P(KvRowTest, StoresAndLoadsTheBitsOfPlain) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {1, 5, 16, 20, 64, 80, 128, 129}) {
      for (const float size : {1e-3f, 1.0f, 300.0f}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << head_dim << " " << size);
        const KvLayout layout = LayoutOf(head_dim, dtype);
        std::vector<std::byte> fast(layout.block_bytes(), std::byte{0x5a}), plain = fast;
        for (int row = 0; row < layout.block_size; ++row) {
          const std::vector<float> key = RandomFloats(head_dim, 10 + row, size);
          const std::vector<float> value = RandomFloats(head_dim, 20 + row, 2 * size);
          StoreKvRow(key.data(), value.data(), layout,
                     KvRowPlaceOf(layout, fast.data(), 1, 1, row));
          StoreKvRowPlain(key.data(), value.data(), layout,
                          KvRowPlaceOf(layout, plain.data(), 1, 1, row));
        }
        ASSERT_TRUE(fast == plain);
        std::vector<float> loaded(layout.block_size * head_dim), expected(loaded.size());
        for (const KvRows rows :
             {KeyRowsOf(layout, fast.data(), 1, 1), ValueRowsOf(layout, fast.data(), 1, 1)}) {
          LoadKvRows(rows, layout, layout.block_size, loaded.data());
          LoadKvRowsPlain(rows, layout, layout.block_size, expected.data());
          ASSERT_EQ(loaded, expected);
        }
      }
    }
  }
}

TEST_P(KvRowTest, EveryTypeIsAsNearAsItsPrecisionAllows) {
  const int head_dim = 72;
  const std::vector<float> key = RandomFloats(head_dim, 1), value = RandomFloats(head_dim, 2, 9.0f);
  for (const DType dtype : kKvDTypes) {
    const KvLayout layout = LayoutOf(head_dim, dtype);
    std::vector<std::byte> block(layout.block_bytes());
    StoreKvRow(key.data(), value.data(), layout, KvRowPlaceOf(layout, block.data(), 0, 1, 2));
    std::vector<float> back(head_dim);
    for (const bool is_value : {false, true}) {
      const std::vector<float>& x = is_value ? value : key;
      const KvRows rows = is_value ? ValueRowsOf(layout, block.data(), 0, 1, 2)
                                   : KeyRowsOf(layout, block.data(), 0, 1, 2);
      LoadKvRows(rows, layout, 1, back.data());
      float max = 0;
      for (const float v : x) max = std::max(max, std::abs(v));
      for (int i = 0; i < head_dim; ++i) {
        const float size = std::abs(x[i]);
        const float bound = dtype == DType::kF32    ? 0.0f
                            : dtype == DType::kBF16 ? size / 256
                            : dtype == DType::kF16  ? size / 2048 + 1e-7f
                                                    : max / 254 * 1.0001f;
        ASSERT_NEAR(back[i], x[i], bound) << DTypeName(dtype);
      }
    }
  }
}

TEST_P(KvRowTest, Int8RoundsToTheNearestCodeAndReachesBothEnds) {
  // Scale 1; halves go to the even code. Longer than any vector, so that both paths round.
  std::vector<float> x;
  for (int i = 0; i < 5; ++i) {
    for (const float v : {127.0f, -127.0f, 0.5f, 1.5f, -2.5f, 126.4f, -0.49f}) x.push_back(v);
  }
  const Int8Row row(x);
  EXPECT_EQ(row.scales[0], 1.0f);
  EXPECT_EQ(row.scales[1], 1.0f);
  const int8_t expected[] = {127, -127, 0, 2, -2, 126, 0};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(row.codes[i], expected[i % 7]) << x[i];
}

TEST_P(KvRowTest, Int8RowsOfZerosAndOfTinyValuesAreZero) {
  for (const float size : {0.0f, 1e-42f, 1e-31f}) {
    const Int8Row row(std::vector<float>(37, size));
    EXPECT_EQ(row.scales[0], 0.0f) << size;
    for (const float v : row.back) EXPECT_EQ(v, 0.0f) << size;
  }
  const Int8Row row(std::vector<float>(37, -2e-30f));
  for (const float v : row.back) EXPECT_NEAR(v, -2e-30f, 1e-36f);
}

// As in the other types, where such an element is kept, attention to the token shows it.
TEST_P(KvRowTest, Int8RowsThatAreNotFiniteReadAsNaN) {
  for (const float bad : {kInfinity, -kInfinity, kNaN}) {
    for (const int at : {0, 36}) {  // in a vector, and behind the last whole one
      std::vector<float> x = RandomFloats(37, 1);
      x[at] = bad;
      for (const float v : Int8Row(x).back) EXPECT_TRUE(std::isnan(v)) << bad << " at " << at;
    }
  }
  const Int8Row largest({3e38f, -1.0f, 0.0f});
  EXPECT_EQ(largest.back[0], 3e38f);
}

TEST_P(KvRowTest, HalvesAreToNearestEvenAndTooLargeOnesInfinite) {
  const KvLayout layout = LayoutOf(16, DType::kF16);
  std::vector<float> x(16, 1.0f);
  x[1] = 1.0f + 0x1p-11f;      // a tie: to even, down
  x[2] = 1.0f + 3 * 0x1p-11f;  // a tie: to even, up
  x[3] = 70000.0f;             // beyond the largest half
  x[4] = -0x1p-24f;            // the smallest subnormal half
  std::vector<std::byte> block(layout.block_bytes());
  StoreKvRow(x.data(), x.data(), layout, KvRowPlaceOf(layout, block.data(), 0, 0, 0));
  std::vector<float> back(16);
  LoadKvRows(ValueRowsOf(layout, block.data(), 0, 0), layout, 1, back.data());
  EXPECT_EQ(back[1], 1.0f);
  EXPECT_EQ(back[2], 1.0f + 0x1p-9f);
  EXPECT_EQ(back[3], kInfinity);
  EXPECT_EQ(back[4], -0x1p-24f);
}

}  // namespace
}  // namespace tokenbutler
