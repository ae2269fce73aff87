#include "tools/train/adamw.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// The algorithm as it is published, in double.
TEST(AdamWTest, FollowsTheAlgorithm) {
  constexpr double kDecay = 0.1;
  AdamW optimiser(kDecay);
  AlignedFloats x = {1.0f, -2.0f, 0.5f};
  std::vector<double> wanted(x.begin(), x.end()), m(3), v(3);
  for (int step = 1; step <= 20; ++step) {
    const float rate = 0.01f * static_cast<float>(step % 3 + 1);
    const AlignedFloats g = {0.3f * x[0], 1e-3f, step % 2 == 0 ? 5.0f : -4.0f};
    optimiser.Update(rate, g, &x);
    for (int i = 0; i < 3; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(0.9, step));
      const double v_hat = v[i] / (1 - std::pow(0.999, step));
      wanted[i] -= rate * (m_hat / (std::sqrt(v_hat) + 1e-8) + kDecay * wanted[i]);
    }
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(x[i], wanted[i], 1e-5) << step;
  }
}

TEST(LearningRateTest, WarmsUpAndFallsAsACosine) {
  const auto rate = [](int64_t step) { return LearningRateAt(step, 1000, 0.1f, 0.01f); };
  EXPECT_FLOAT_EQ(rate(0), 0.0001f);
  EXPECT_FLOAT_EQ(rate(49), 0.005f);
  EXPECT_FLOAT_EQ(rate(99), 0.01f);
  EXPECT_FLOAT_EQ(rate(100), 0.01f);
  EXPECT_NEAR(rate(550), 0.005f, 1e-6);
  EXPECT_GT(rate(999), 0);
  EXPECT_LT(rate(999), 1e-6);
  EXPECT_FLOAT_EQ(LearningRateAt(0, 1, 0.0f, 0.01f), 0.01f);
}

}  // namespace
}  // namespace tokenbutler
