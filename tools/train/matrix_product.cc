#include "tools/train/matrix_product.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

namespace tokenbutler {
namespace {

// LibTorch's own team of threads stays out of it: see prefill_math.h.
void KeepToThisThread() {
  thread_local const bool is_alone = [] {
    at::set_num_threads(1);
    return true;
  }();
  (void)is_alone;
}

// `data` is only written through the result if it is an output.
at::Tensor Wrap(const Matrix& m) {
  const int64_t width = m.is_transposed ? m.rows : m.columns;
  const int64_t stride = m.stride == 0 ? width : static_cast<int64_t>(m.stride);
  return at::from_blob(const_cast<float*>(m.data), {m.rows, m.columns},
                       m.is_transposed ? at::IntArrayRef{1, stride} : at::IntArrayRef{stride, 1},
                       at::kFloat);
}

}  // namespace

void Multiply(const Matrix& a, const Matrix& b, bool adds, float* out, size_t out_stride) {
  KeepToThisThread();
  const c10::InferenceMode inference;
  at::Tensor result = Wrap({out, a.rows, b.columns, out_stride});
  if (adds) {
    at::addmm_out(result, result, Wrap(a), Wrap(b));
  } else {
    at::mm_out(result, Wrap(a), Wrap(b));
  }
}

}  // namespace tokenbutler
