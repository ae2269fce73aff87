#pragma once

#include <cstddef>

namespace tokenbutler {

// A float32 matrix in memory of the caller's.
struct Matrix {
  const float* data = nullptr;
  int rows = 0, columns = 0;
  // Elements between the starts of two rows as they are in memory; 0: they follow each other.
  size_t stride = 0;
  bool is_transposed = false;  // `data` holds the transpose: [columns, rows]

  Matrix Transposed() const { return {data, columns, rows, stride, !is_transposed}; }
};

// out = a b, or out += a b with `adds`. `out` [a.rows, b.columns], `out_stride` as Matrix::stride.
// By LibTorch, on the calling thread alone; any thread. Throws what LibTorch throws.
// REQUIRES: a.columns == b.rows; `out` overlaps neither.
void Multiply(const Matrix& a, const Matrix& b, bool adds, float* out, size_t out_stride = 0);

}  // namespace tokenbutler
