#include "engine/selection/low_rank.h"

#include <algorithm>

#include "Eigen/Eigenvalues"
#include "engine/kernels/linear.h"

namespace tokenbutler {
namespace {

constexpr int kChunkRows = 256;

using ReadRows = absl::FunctionRef<void(int begin, int end, float* out)>;

// The sum over rows of the outer product of each row with itself.
Eigen::MatrixXd GramMatrix(int num_rows, int num_columns, ReadRows read, ComputePool& pool) {
  const size_t columns = static_cast<size_t>(num_columns);
  Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(num_columns, num_columns);
  std::vector<float> chunk(kChunkRows * columns), transposed(kChunkRows * columns);
  std::vector<float> products(columns * columns);
  for (int begin = 0; begin < num_rows; begin += kChunkRows) {
    const int count = std::min(kChunkRows, num_rows - begin);
    read(begin, begin + count, chunk.data());
    pool.ParallelFor(num_columns, [&](int c) {
      float* column = transposed.data() + static_cast<size_t>(c) * count;
      for (int i = 0; i < count; ++i) column[i] = chunk[i * columns + c];
    });
    Linear({.x = transposed.data(),
            .x_dtype = DType::kF32,
            .weight = transposed.data(),
            .weight_dtype = DType::kF32,
            .y = products.data(),
            .num_rows = num_columns,
            .in_features = count,
            .out_features = num_columns},
           pool);
    pool.ParallelFor(num_columns, [&](int c) {
      double* sums = gram.data() + c * columns;
      for (size_t i = 0; i < columns; ++i) sums[i] += products[c * columns + i];
    });
  }
  return gram;
}

}  // namespace

LowRankMatrix Factorise(int num_rows, int num_columns, int rank, ReadRows read, ComputePool& pool) {
  LowRankMatrix matrix{.num_rows = num_rows,
                       .num_columns = num_columns,
                       .rank = std::min({rank, num_rows, num_columns}),
                       .rows = {},
                       .basis = {}};
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
      GramMatrix(num_rows, num_columns, read, pool));
  const size_t columns = static_cast<size_t>(num_columns), k = static_cast<size_t>(matrix.rank);
  matrix.basis.resize(columns * k);
  std::vector<float> directions(k * columns);  // [rank, num_columns]
  for (size_t r = 0; r < k; ++r) {
    // Eigenvalues come in ascending order.
    const auto direction = solver.eigenvectors().col(static_cast<Eigen::Index>(columns - 1 - r));
    for (size_t c = 0; c < columns; ++c) {
      const BF16 rounded = ToBF16(static_cast<float>(direction[static_cast<Eigen::Index>(c)]));
      matrix.basis[c * k + r] = rounded;
      directions[r * columns + c] = ToFloat(rounded);
    }
  }
  matrix.rows.resize(num_rows * k);
  std::vector<float> chunk(kChunkRows * columns), projected(kChunkRows * k);
  for (int begin = 0; begin < num_rows; begin += kChunkRows) {
    const int count = std::min(kChunkRows, num_rows - begin);
    read(begin, begin + count, chunk.data());
    Linear({.x = chunk.data(),
            .x_dtype = DType::kF32,
            .weight = directions.data(),
            .weight_dtype = DType::kF32,
            .y = projected.data(),
            .num_rows = count,
            .in_features = num_columns,
            .out_features = matrix.rank},
           pool);
    RoundToBf16(projected.data(), count * matrix.rank, matrix.rows.data() + begin * k);
  }
  return matrix;
}

void MultiplyOut(const LowRankMatrix& matrix, int begin, int end, int first_column, int num_columns,
                 float* out, ComputePool& pool) {
  const size_t rank = static_cast<size_t>(matrix.rank);
  Linear({.x = matrix.rows.data() + begin * rank,
          .x_dtype = DType::kBF16,
          .weight = matrix.basis.data() + first_column * rank,
          .weight_dtype = DType::kBF16,
          .y = out,
          .num_rows = end - begin,
          .in_features = matrix.rank,
          .out_features = num_columns},
         pool);
}

}  // namespace tokenbutler
