#include "tools/train/softmax_rows.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"

namespace tokenbutler {
namespace {

struct Range {
  int begin, end, limit, size;
};

constexpr float kUntouched = 7;  // behind a row

class SoftmaxRowsTest : public testing::TestWithParam<Range> {};

// The formulas of the header, in double.
TEST_P(SoftmaxRowsTest, MatchTheirFormulas) {
  const auto [begin, end, limit, size] = GetParam();
  std::vector<float> x = RandomValues(size + 1, 1, 4.0f), y = RandomValues(size + 1, 2, 3.0f);
  x[size] = y[size] = kUntouched;
  double total = 0, mass = 0, student_total = 0;
  for (int t = 0; t < limit; ++t) total += std::exp(double{x[t]});
  for (int t = begin; t < end; ++t) {
    mass += std::exp(double{x[t]}) / total;
    student_total += std::exp(double{y[t]});
  }
  std::vector<double> p(size), gradient(size);
  double neg_entropy = 0, loss = 0;
  for (int t = begin; t < end; ++t) {
    p[t] = std::exp(double{x[t]}) / total;
    const double log_softmax = y[t] - std::log(student_total);
    neg_entropy += p[t] * std::log(p[t] / mass);
    loss -= p[t] * log_softmax;
    gradient[t] = 0.5 * (mass * std::exp(log_softmax) - p[t]);
  }

  const TeacherRow row = SoftmaxOfTeacher(begin, end, limit, size, x.data());
  EXPECT_NEAR(row.mass, mass, 1e-6);
  EXPECT_NEAR(row.neg_entropy, neg_entropy, 1e-5);
  EXPECT_NEAR(StudentLoss(x.data(), row.mass, begin, end, size, 0.5f, y.data()), loss, 1e-5);
  for (int t = 0; t < size; ++t) {
    EXPECT_NEAR(x[t], p[t], 1e-6) << t;
    EXPECT_NEAR(y[t], gradient[t], 1e-6) << t;
  }
  EXPECT_EQ(x[size], kUntouched);
  EXPECT_EQ(y[size], kUntouched);
}

INSTANTIATE_TEST_SUITE_P(Ranges, SoftmaxRowsTest,
                         testing::Values(Range{0, 1, 1, 1}, Range{0, 5, 5, 5}, Range{0, 16, 16, 20},
                                         Range{3, 30, 40, 50}, Range{4, 4, 9, 12},
                                         Range{0, 3000, 3000, 3000}, Range{32, 2900, 3001, 3010}));

// A teacher who looks elsewhere teaches nothing, and one whose logits are far apart gives numbers.
TEST(SoftmaxRowsEdgesTest, NothingToFindGivesNoLossAndNoGradient) {
  std::vector<float> x = {200, -200, -300, 0}, y = {1, 2, 3, 4};
  const TeacherRow row = SoftmaxOfTeacher(1, 3, 4, 4, x.data());
  EXPECT_EQ(row.mass, 0);
  EXPECT_EQ(row.neg_entropy, 0);
  EXPECT_EQ(StudentLoss(x.data(), row.mass, 1, 3, 4, 1, y.data()), 0);
  EXPECT_EQ(y, std::vector<float>({0, 0, 0, 0}));
}

TEST(SoftmaxRowsEdgesTest, NaNIsNotHidden) {
  std::vector<float> x = {1, std::numeric_limits<float>::quiet_NaN(), 2}, y = {1, 2, 3};
  EXPECT_TRUE(std::isnan(SoftmaxOfTeacher(0, 3, 3, 3, x.data()).mass));
  std::vector<float> p = {0.5, 0.25, 0.25};
  y[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(StudentLoss(p.data(), 1, 0, 3, 3, 1, y.data())));
}

}  // namespace
}  // namespace tokenbutler
