#include "base/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(DTypeTest, BF16RoundsToNearestEven) {
  EXPECT_EQ(ToBF16(1.0f).bits, 0x3f80);
  // 1 + 2^-8 lies halfway between two bf16 values: the even one wins.
  EXPECT_EQ(ToBF16(1.0f + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(ToBF16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);
  EXPECT_EQ(ToFloat(ToBF16(std::numeric_limits<float>::infinity())),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(ToFloat(ToBF16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(DTypeTest, HalfToFloatIsExactForEveryInput) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    const double sign = (bits & 0x8000) ? -1.0 : 1.0;
    const float got = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), mantissa != 0) << bits;
      EXPECT_EQ(std::isinf(got), mantissa == 0) << bits;
      continue;
    }
    const double want =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(got, static_cast<float>(sign * want)) << bits;
    EXPECT_EQ(std::signbit(got), sign < 0) << bits;
  }
}

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kBF16), 2u);
  EXPECT_EQ(DTypeName(DType::kBF16), "bfloat16");
}

}  // namespace
}  // namespace tokenbutler
