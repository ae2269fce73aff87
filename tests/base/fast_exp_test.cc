#include "base/fast_exp.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(FastExpTest, AgreesWithLibm) {
  double worst = 0;
  for (float x = 0; x > -86.9f; x -= 0.00137f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(FastExp(x) - exact) / exact);
  }
  EXPECT_LT(worst, 3e-7);
  EXPECT_EQ(FastExp(0), 1.0f);
}

TEST(FastExpTest, VanishesFarBelow) {
  EXPECT_EQ(FastExp(-87.5f), 0.0f);
  EXPECT_EQ(FastExp(-1e30f), 0.0f);
  EXPECT_EQ(FastExp(-std::numeric_limits<float>::infinity()), 0.0f);
}

}  // namespace
}  // namespace tokenbutler
