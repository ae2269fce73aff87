#include "engine/kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<int32_t> Chosen(const std::vector<float>& scores, int k) {
  const int n = static_cast<int>(scores.size());
  std::vector<int32_t> indices(std::clamp(k, 0, n) + 16, -1);
  indices.resize(TopK(scores.data(), n, k, indices.data()));
  return indices;
}

std::vector<int32_t> ChosenPlain(const std::vector<float>& scores, int k) {
  std::vector<int32_t> indices(scores.size());
  indices.resize(TopKPlain(scores.data(), static_cast<int>(scores.size()), k, indices.data()));
  return indices;
}

void ExpectEqualsPlain(const std::vector<float>& scores) {
  const int n = static_cast<int>(scores.size());
  for (const int k : {-1, 0, 1, 2, 3, n / 100, n / 7, n / 2, n - 2, n - 1, n, n + 5}) {
    ASSERT_EQ(Chosen(scores, k), ChosenPlain(scores, k)) << k << " of " << n;
  }
}

using TopKTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, TopKTest, testing::ValuesIn(RunnableTargets()), TargetTestName);

// What the specification itself means, by hand.
TEST(TopKPlainTest, TiesToTheLowerIndexAndNanLast) {
  EXPECT_EQ(ChosenPlain({1, 3, 2, 3, 3}, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(ChosenPlain({0.0f, -0.0f, 0.0f}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ChosenPlain({kNan, -kInf, kNan, 5}, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(ChosenPlain({kNan, -kInf, kNan, 5}, 3), (std::vector<int32_t>{0, 1, 3}));
}

TEST_P(TopKTest, RandomScores) {
  for (const int n : {0, 1, 2, 15, 16, 17, 31, 33, 100, 4096, 4097, 30000}) {
    ExpectEqualsPlain(RandomFloats(n, n + 1));
  }
}

TEST_P(TopKTest, ScoresWithManyTies) {
  std::mt19937 random(1);
  for (const int levels : {1, 2, 3, 50}) {
    std::vector<float> scores(20000);
    for (float& score : scores) score = static_cast<float>(random() % levels) - 1;
    ExpectEqualsPlain(scores);
  }
}

TEST_P(TopKTest, ZerosOfBothSigns) {
  std::vector<float> scores(500);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = i % 3 == 0 ? -0.0f : 0.0f;
  ExpectEqualsPlain(scores);
  for (size_t i = 0; i < scores.size(); i += 5) scores[i] = i % 2 == 0 ? 1.0f : -1.0f;
  ExpectEqualsPlain(scores);
}

TEST_P(TopKTest, SpecialValues) {
  const std::vector<float> special = {kNan,
                                      -kNan,
                                      kInf,
                                      -kInf,
                                      0.0f,
                                      -0.0f,
                                      std::numeric_limits<float>::max(),
                                      std::numeric_limits<float>::lowest(),
                                      std::numeric_limits<float>::denorm_min(),
                                      1.0f};
  std::mt19937 random(2);
  for (const int n : {40, 5000}) {
    std::vector<float> scores(n);
    for (float& score : scores) score = special[random() % special.size()];
    ExpectEqualsPlain(scores);
  }
  ExpectEqualsPlain(std::vector<float>(100, kNan));
  ExpectEqualsPlain(std::vector<float>(100, -kInf));
}

// Values that differ by one unit in the last place, and values of all magnitudes.
TEST_P(TopKTest, HardToSeparate) {
  std::vector<float> scores(10000);
  float value = 1;
  for (float& score : scores) score = value = std::nextafter(value, 2.0f);
  ExpectEqualsPlain(scores);
  std::reverse(scores.begin(), scores.end());
  ExpectEqualsPlain(scores);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, static_cast<int>(i % 250) - 125);
  }
  ExpectEqualsPlain(scores);
}

TEST_P(TopKTest, KthLargestIsThatOfASort) {
  for (const int n : {1, 5, 5000, 30000}) {
    const std::vector<float> scores = RandomFloats(n, 3);
    std::vector<float> sorted = scores;
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    for (const int k : {1, (n + 1) / 2, n}) {
      EXPECT_EQ(KthLargest(scores.data(), n, k), sorted[k - 1]) << k << " of " << n;
    }
  }
  const std::vector<float> with_nan = {kNan, 2, 1};
  EXPECT_EQ(KthLargest(with_nan.data(), 3, 2), 1);
  EXPECT_EQ(KthLargest(with_nan.data(), 3, 3), -kInf);
}

}  // namespace
}  // namespace tokenbutler
