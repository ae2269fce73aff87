#include "engine/prefill_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/prefill_tasks.h"
#include "engine/prefill_tensors.h"

namespace tokenbutler {
namespace {

constexpr int kRowsPerTask = 16;         // of the small operations
constexpr int kMinColumnsPerTask = 64;   // of a product; fewer are slow, more than this do not
constexpr int kMaxColumnsPerTask = 512;  // fit the second-level cache
constexpr int kTasksPerThread = 4;

// T: the compute dtype, of the weights.
template <typename T>
class LibTorchPrefillMath : public PrefillMath {
 public:
  LibTorchPrefillMath(ComputePool& pool, std::unique_ptr<PrefillAttention> attention)
      : pool_(pool), attention_(std::move(attention)) {}

  ComputePool& pool() override { return pool_; }
  void Linear(const void* x, const TensorView& weight, const float* bias, float* y,
              int num_rows) override;
  void ForRows(int num_rows, absl::FunctionRef<void(int, int)> fn) override;
  void Attend(TokenRows& rows, int layer, int window) override {
    attention_->Attend(rows, layer, window);
  }

 private:
  ComputePool& pool_;
  std::unique_ptr<PrefillAttention> attention_;
  // [out_features, num_rows], in blocks of columns. Only grows: the largest chunk's memory is kept.
  std::vector<T> product_;
};

template <typename T>
T* Reserve(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

template <typename T>
void LibTorchPrefillMath<T>::ForRows(int num_rows, absl::FunctionRef<void(int, int)> fn) {
  pool_.ParallelFor((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int task) {
    fn(task * kRowsPerTask, std::min(num_rows, (task + 1) * kRowsPerTask));
  });
}

template <typename T>
void LibTorchPrefillMath<T>::Linear(const void* x, const TensorView& weight, const float* bias,
                                    float* y, int num_rows) {
  const int in = static_cast<int>(weight.shape[1]), out = static_cast<int>(weight.shape[0]);
  const int share = (out / (kTasksPerThread * pool_.num_threads()) + 31) / 32 * 32;
  const int columns_per_task = std::clamp(share, kMinColumnsPerTask, kMaxColumnsPerTask);
  T* products = Reserve(product_, static_cast<size_t>(num_rows) * out);
  RunLibTorchTasks(pool_, (out + columns_per_task - 1) / columns_per_task, [&](int task) {
    const int begin = task * columns_per_task;
    const int columns = std::min(columns_per_task, out - begin);
    const T* weights = weight.as<T>() + static_cast<size_t>(begin) * in;
    const T* product = products + static_cast<size_t>(begin) * num_rows;
    at::Tensor result = Wrap(product, {num_rows, columns}, {columns, 1});
    at::mm_out(result, Wrap(static_cast<const T*>(x), {num_rows, in}, {in, 1}),
               Wrap(weights, {in, columns}, {1, in}));
    for (int row = 0; row < num_rows; ++row, product += columns) {
      float* to = y + static_cast<size_t>(row) * out + begin;
      for (int i = 0; i < columns; ++i) to[i] = ToFloat(product[i]);
      if (bias == nullptr) continue;
      for (int i = 0; i < columns; ++i) to[i] += bias[begin + i];
    }
  });
}

}  // namespace

std::unique_ptr<PrefillMath> PrefillMath::Create(DType compute_dtype, ComputePool& pool,
                                                 std::optional<PrefillAttentionKind> attention) {
  const PrefillAttentionKind kind =
      attention.has_value() ? *attention : FastestPrefillAttention(compute_dtype);
  std::unique_ptr<PrefillAttention> attend = PrefillAttention::Create(kind, compute_dtype, pool);
  if (compute_dtype == DType::kF32) {
    return std::make_unique<LibTorchPrefillMath<float>>(pool, std::move(attend));
  }
  return std::make_unique<LibTorchPrefillMath<BF16>>(pool, std::move(attend));
}

}  // namespace tokenbutler
