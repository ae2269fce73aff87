#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/compute_pool.h"
#include "engine/dense_math.h"
#include "engine/kernels/decode_attention.h"
#include "engine/kernels/sparse_attention.h"

namespace tokenbutler {

// A decode step's mathematics: our kernels over a few rows, each row's result independent of the
// other rows, bit for bit. Allocates only when a step is larger than all before.
class DecodeMath : public DenseMath {
 public:
  explicit DecodeMath(ComputePool& pool) : pool_(pool) {}

  // Room for steps of `num_rows` rows of `config`. RESOURCE_EXHAUSTED naming the bytes.
  absl::Status Reserve(int num_rows, const ModelConfig& config);

  ComputePool& pool() override { return pool_; }
  void Linear(const void* x, const TensorView& weight, const float* bias, float* y,
              int num_rows) override;
  // On the calling thread: a few rows are done before another thread is awake.
  void ForRows(int num_rows, absl::FunctionRef<void(int, int)> fn) override { fn(0, num_rows); }
  void Attend(TokenRows& rows, int layer, int window) override;

 private:
  ComputePool& pool_;
  std::vector<DecodeAttentionParams::Query> queries_;
  std::vector<SparseAttentionParams::Query> sparse_queries_;
  Buffer workspace_;  // DecodeAttention's
};

}  // namespace tokenbutler
