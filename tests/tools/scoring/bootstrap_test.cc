#include "tools/scoring/bootstrap.h"

#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(BootstrapMeanTest, OfOneValueIsThatValue) {
  const MeanInterval mean = BootstrapMean({0.25});
  EXPECT_EQ(mean.mean, 0.25);
  EXPECT_EQ(mean.low, 0.25);
  EXPECT_EQ(mean.high, 0.25);
}

TEST(BootstrapMeanTest, IntervalIsAboutTwoStandardErrorsWide) {
  std::vector<double> values;  // uniform in [0, 1): deviation 0.2887
  for (int i = 0; i < 100; ++i) values.push_back(i * 0.01);
  const MeanInterval mean = BootstrapMean(values);
  EXPECT_NEAR(mean.mean, 0.495, 1e-12);
  EXPECT_NEAR(mean.low, 0.495 - 1.96 * 0.02887, 0.005);
  EXPECT_NEAR(mean.high, 0.495 + 1.96 * 0.02887, 0.005);
  EXPECT_EQ(BootstrapMean(values).low, mean.low) << "not the same in every run";
}

TEST(BootstrapDifferenceTest, WhatVariesTogetherDoesNotCount) {
  // Far apart from one pair to the next, but always 0.01 to 0.02 between the two of a pair.
  std::vector<double> a, b;
  for (int i = 0; i < 40; ++i) {
    b.push_back(i * 10.0);
    a.push_back(b.back() + (i % 2 == 0 ? 0.01 : 0.02));
  }
  const MeanInterval difference = BootstrapDifference(a, b);
  EXPECT_NEAR(difference.mean, 0.015, 1e-9);
  EXPECT_GT(difference.low, 0.01);
  EXPECT_LT(difference.high, 0.02);
  EXPECT_FALSE(difference.holds(0));
  EXPECT_TRUE(difference.holds(0.015));
  EXPECT_TRUE(BootstrapDifference(a, a).holds(0));
}

TEST(BootstrapRatioTest, IsThatOfTheSums) {
  const MeanInterval same = BootstrapRatio({2, 4, 6}, {1, 2, 3});
  EXPECT_NEAR(same.mean, 2, 1e-12);
  EXPECT_NEAR(same.low, 2, 1e-12);
  EXPECT_NEAR(same.high, 2, 1e-12);
  const MeanInterval mixed = BootstrapRatio({1, 9}, {1, 1});
  EXPECT_EQ(mixed.mean, 5);
  EXPECT_EQ(mixed.low, 1);
  EXPECT_EQ(mixed.high, 9);
}

}  // namespace
}  // namespace tokenbutler
