#include "engine/selection/low_rank.h"

#include <algorithm>
#include <random>
#include <vector>

#include "Eigen/SVD"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

Eigen::MatrixXd RandomMatrix(int rows, int columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  return Eigen::MatrixXd::NullaryExpr(rows, columns, [&] { return normal(random); });
}

LowRankMatrix FactoriseMatrix(const Eigen::MatrixXd& matrix, int rank, int num_threads = 2) {
  ComputePool pool(num_threads);
  return Factorise(
      static_cast<int>(matrix.rows()), static_cast<int>(matrix.cols()), rank,
      [&](int begin, int end, float* out) {
        for (int i = begin; i < end; ++i) {
          for (int c = 0; c < matrix.cols(); ++c) *out++ = static_cast<float>(matrix(i, c));
        }
      },
      pool);
}

Eigen::MatrixXd Multiplied(const LowRankMatrix& low, int begin, int end, int first, int count) {
  ComputePool pool(2);
  std::vector<float> out(static_cast<size_t>(end - begin) * count);
  MultiplyOut(low, begin, end, first, count, out.data(), pool);
  Eigen::MatrixXd product(end - begin, count);
  for (int i = 0; i < end - begin; ++i) {
    for (int c = 0; c < count; ++c) product(i, c) = out[static_cast<size_t>(i) * count + c];
  }
  return product;
}

TEST(LowRankTest, IsTheTruncatedSingularValueDecomposition) {
  const Eigen::MatrixXd matrix = RandomMatrix(600, 40, 1);
  const Eigen::BDCSVD<Eigen::MatrixXd> svd(matrix, Eigen::ComputeThinU | Eigen::ComputeThinV);
  for (const int rank : {1, 7, 40}) {
    const LowRankMatrix low = FactoriseMatrix(matrix, rank);
    EXPECT_EQ(low.rank, rank);
    EXPECT_EQ(low.bytes(), 2u * rank * (600 + 40));
    const Eigen::MatrixXd best = svd.matrixU().leftCols(rank) *
                                 svd.singularValues().head(rank).asDiagonal() *
                                 svd.matrixV().leftCols(rank).transpose();
    const Eigen::MatrixXd product = Multiplied(low, 0, 600, 0, 40);
    EXPECT_LT((product - best).norm(), 0.01 * best.norm()) << "rank " << rank;
    EXPECT_LT((product - matrix).norm(), (best - matrix).norm() + 0.01 * best.norm());
  }
}

TEST(LowRankTest, TheRankIsAtMostThatOfTheSmallerSide) {
  EXPECT_EQ(FactoriseMatrix(RandomMatrix(5, 30, 2), 64).rank, 5);
  EXPECT_EQ(FactoriseMatrix(RandomMatrix(300, 8, 3), 64).rank, 8);
}

TEST(LowRankTest, MultipliesOutAnyPart) {
  const LowRankMatrix low = FactoriseMatrix(RandomMatrix(100, 24, 4), 6);
  const Eigen::MatrixXd all = Multiplied(low, 0, 100, 0, 24);
  EXPECT_EQ(Multiplied(low, 33, 77, 8, 9), all.block(33, 8, 44, 9));
}

TEST(LowRankTest, DoesNotDependOnThreads) {
  const Eigen::MatrixXd matrix = RandomMatrix(700, 20, 5);
  const LowRankMatrix one = FactoriseMatrix(matrix, 5, 1), three = FactoriseMatrix(matrix, 5, 3);
  const auto bits = [](BF16 a, BF16 b) { return a.bits == b.bits; };
  EXPECT_TRUE(std::equal(one.rows.begin(), one.rows.end(), three.rows.begin(), bits));
  EXPECT_TRUE(std::equal(one.basis.begin(), one.basis.end(), three.basis.begin(), bits));
}

}  // namespace
}  // namespace tokenbutler
