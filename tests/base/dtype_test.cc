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

TEST(DTypeTest, FloatToHalfRoundsToNearestEven) {
  for (uint32_t bits = 0; bits <= 0x7bff; ++bits) {  // every finite magnitude and its successor
    const float low = HalfToFloat(static_cast<uint16_t>(bits));
    const float high = bits == 0x7bff ? 65536.0f : HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // exact
    const uint16_t even = static_cast<uint16_t>(bits + (bits & 1));
    for (const uint16_t sign : {0x0000, 0x8000}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(FloatToHalf(s * low), bits | sign);
      EXPECT_EQ(FloatToHalf(s * middle), even | sign) << bits;
      EXPECT_EQ(FloatToHalf(s * std::nextafter(middle, 0.0f)), bits | sign) << bits;
      EXPECT_EQ(FloatToHalf(s * std::nextafter(middle, 1e6f)), (bits + 1) | sign) << bits;
    }
  }
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kBF16), 2u);
  EXPECT_EQ(DTypeName(DType::kBF16), "bfloat16");
}

}  // namespace
}  // namespace tokenbutler
