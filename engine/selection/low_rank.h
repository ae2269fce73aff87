#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/compute_pool.h"
#include "base/dtype.h"

namespace tokenbutler {

// A matrix of many rows as the product of two thin ones:
//   matrix[i][c] ~ sum_k rows[i][k] * basis[c][k]
struct LowRankMatrix {
  int num_rows = 0, num_columns = 0, rank = 0;
  std::vector<BF16> rows;   // [num_rows, rank]
  std::vector<BF16> basis;  // [num_columns, rank], orthonormal columns

  size_t bytes() const { return (rows.size() + basis.size()) * sizeof(BF16); }
};

// The best approximation of a matrix by one of `rank` in the sense of least squares: its truncated
// singular value decomposition, by way of the eigenvectors of its Gram matrix. `read(begin, end,
// out)` writes rows [begin, end) to out [end - begin, num_columns]; every row is asked for twice.
// The rank is at most that of the matrix's smaller side. Takes 2 num_rows num_columns (num_columns
// + rank) operations and num_columns^3 more: seconds to minutes. Throws std::bad_alloc.
LowRankMatrix Factorise(int num_rows, int num_columns, int rank,
                        absl::FunctionRef<void(int begin, int end, float* out)> read,
                        ComputePool& pool);

// Rows [begin, end) of columns [first_column, first_column + num_columns) of the product, to
// out [end - begin, num_columns]. The result does not depend on the number of threads.
void MultiplyOut(const LowRankMatrix& matrix, int begin, int end, int first_column, int num_columns,
                 float* out, ComputePool& pool);

}  // namespace tokenbutler
