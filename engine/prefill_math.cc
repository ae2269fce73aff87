#include "engine/prefill_math.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

namespace tokenbutler {
namespace {

constexpr int kRowsPerTask = 16;

float ToFloat(float x) { return x; }
using tokenbutler::ToFloat;

at::ScalarType ScalarTypeOf(DType dtype) {
  return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat;
}

// A tensor over memory of ours; `data` is only written through it if it is an output.
at::Tensor Wrap(const void* data, DType dtype, at::IntArrayRef shape, at::IntArrayRef strides) {
  return at::from_blob(const_cast<void*>(data), shape, strides,
                       at::TensorOptions().dtype(ScalarTypeOf(dtype)));
}

// Workspace that only grows: the memory of the largest chunk is kept, or glibc would return it to
// the kernel after each chunk and page faults would dominate.
std::byte* Reserve(at::Tensor& buffer, size_t bytes) {
  if (!buffer.defined() || buffer.nbytes() < bytes) {
    buffer = at::Tensor();  // before the new one is taken
    buffer = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  }
  return static_cast<std::byte*>(buffer.data_ptr());
}

// What attention over some tokens gives: the weighted values and the log-sum-exp of the logits.
struct Attention {
  at::Tensor out;  // [num_rows, num_heads, head_dim] compute, contiguous
  at::Tensor lse;  // [num_heads, num_rows] float32, contiguous
};

// `query` [1, num_heads, num_rows, head_dim]; `key`, `value` [1, num_kv_heads, num_keys, head_dim];
// `mask` [num_rows, num_keys], added to the logits; is_causal: row i sees the keys 0 ... i.
Attention FlashAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         bool is_causal, const std::optional<at::Tensor>& mask) {
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, /*dropout_p=*/0, is_causal, mask);
  return {out.transpose(1, 2).contiguous(), lse.contiguous()};
}

class AtenPrefillMath : public PrefillMath {
 public:
  AtenPrefillMath(ComputePool& pool, int num_threads) : pool_(pool), num_threads_(num_threads) {}

  void Linear(const void* x, const TensorView& weight, const float* bias, float* y,
              int num_rows) override;
  void ForRows(int num_rows, absl::FunctionRef<void(int, int)> fn) override;
  void Attend(TokenRows& rows, int layer, int window) override;

 private:
  // LibTorch keeps its number of threads per calling thread.
  void AdoptThread();
  // The queries in compute dtype. [1, num_heads, num_rows, head_dim]
  at::Tensor Queries(const TokenRows& rows);
  // Copies the keys and values of tokens [begin, end) of the cache into keys_ and values_.
  void GatherCache(const TokenRows& rows, int layer, int begin, int end);
  // Hides from each row what its window does not reach. [num_rows, end - begin] compute
  const at::Tensor& WindowMask(const TokenRows& rows, int begin, int window);
  // attended = the attention over past and own tokens together, from that over each.
  void Merge(const Attention& past, const Attention& own, const TokenRows& rows);

  ComputePool& pool_;
  const int num_threads_;
  std::thread::id adopted_by_;
  at::Tensor product_;        // [num_rows, out_features] bf16: a product before it is widened
  at::Tensor queries_;        // [num_rows, num_heads, head_dim] compute
  at::Tensor keys_, values_;  // [num_kv_heads, end - begin, head_dim] compute
  at::Tensor mask_;           // the last WindowMask, and what it was made for
  std::tuple<int, int, int, int> mask_made_for_ = {-1, -1, -1, -1};
};

void AtenPrefillMath::AdoptThread() {
  if (adopted_by_ == std::this_thread::get_id()) return;
  at::set_num_threads(num_threads_);
  adopted_by_ = std::this_thread::get_id();
}

void AtenPrefillMath::ForRows(int num_rows, absl::FunctionRef<void(int, int)> fn) {
  pool_.ParallelFor((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int task) {
    fn(task * kRowsPerTask, std::min(num_rows, (task + 1) * kRowsPerTask));
  });
}

void AtenPrefillMath::Linear(const void* x, const TensorView& weight, const float* bias, float* y,
                             int num_rows) {
  const c10::InferenceMode inference;
  AdoptThread();
  const int64_t in = weight.shape[1], out = weight.shape[0];
  const bool widen = weight.dtype != DType::kF32;
  void* product = y;
  if (widen) {
    product = Reserve(product_, static_cast<size_t>(num_rows) * out * DTypeBytes(weight.dtype));
  }
  at::Tensor result = Wrap(product, weight.dtype, {num_rows, out}, {out, 1});
  at::mm_out(result, Wrap(x, weight.dtype, {num_rows, in}, {in, 1}),
             Wrap(weight.data, weight.dtype, {in, out}, {1, in}));
  if (!widen && bias == nullptr) return;

  ForRows(num_rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* to = y + row * out;
      if (widen) {
        const BF16* from = static_cast<const BF16*>(product) + row * out;
        for (int64_t i = 0; i < out; ++i) to[i] = ToFloat(from[i]);
      }
      if (bias != nullptr) {
        for (int64_t i = 0; i < out; ++i) to[i] += bias[i];
      }
    }
  });
}

at::Tensor AtenPrefillMath::Queries(const TokenRows& rows) {
  const ModelConfig& config = rows.config();
  const int size = rows.attended_size();
  std::byte* queries = Reserve(
      queries_, static_cast<size_t>(rows.num_rows()) * size * DTypeBytes(rows.compute_dtype()));
  ForRows(rows.num_rows(), [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const float* query = rows.activations().qkv + static_cast<size_t>(row) * rows.qkv_size();
      std::copy_n(query, size, rows.Unrounded(queries, row, size));
    }
    rows.Round(queries, begin, end, size);
  });
  return Wrap(queries, rows.compute_dtype(),
              {1, config.num_heads, rows.num_rows(), config.head_dim},
              {0, config.head_dim, size, 1});
}

void AtenPrefillMath::GatherCache(const TokenRows& rows, int layer, int begin, int end) {
  const KvLayout& layout = rows.kv_store().layout();
  const std::vector<std::byte*>& blocks = rows.sequences()[0].blocks;
  const size_t row_bytes = layout.row_bytes();
  const size_t head_bytes = (end - begin) * row_bytes;
  std::byte* keys = Reserve(keys_, layout.num_kv_heads * head_bytes);
  std::byte* values = Reserve(values_, layout.num_kv_heads * head_bytes);
  const int first_block = begin / layout.block_size;
  pool_.ParallelFor(layout.blocks_for(end) - first_block, [&](int task) {
    const int block_begin = (first_block + task) * layout.block_size;
    const int token = std::max(begin, block_begin);
    const int num_tokens = std::min(end, block_begin + layout.block_size) - token;
    const std::byte* from = blocks[first_block + task] + (token - block_begin) * row_bytes;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const size_t to = head * head_bytes + (token - begin) * row_bytes;
      std::memcpy(keys + to, from + layout.key_offset(layer, head), num_tokens * row_bytes);
      std::memcpy(values + to, from + layout.value_offset(layer, head), num_tokens * row_bytes);
    }
  });
}

const at::Tensor& AtenPrefillMath::WindowMask(const TokenRows& rows, int begin, int window) {
  const TokenRows::Sequence& sequence = rows.sequences()[0];
  const std::tuple made_for(begin, sequence.start_position, sequence.num_rows, window);
  if (mask_made_for_ == made_for) return mask_;  // made by the layer before
  const int num_keys = sequence.context_len() - begin;
  at::Tensor mask = at::empty({sequence.num_rows, num_keys}, at::kFloat);
  float* value = mask.data_ptr<float>();
  for (int row = 0; row < sequence.num_rows; ++row) {
    const int position = sequence.start_position + row;
    for (int token = begin; token < begin + num_keys; ++token) {
      const bool is_seen = token <= position && token > position - window;
      *value++ = is_seen ? 0.0f : -std::numeric_limits<float>::infinity();
    }
  }
  mask_ = mask.to(ScalarTypeOf(rows.compute_dtype()));
  mask_made_for_ = made_for;
  return mask_;
}

void AtenPrefillMath::Merge(const Attention& past, const Attention& own, const TokenRows& rows) {
  const int num_rows = rows.num_rows(), num_heads = rows.config().num_heads;
  const int head_dim = rows.config().head_dim, size = rows.attended_size();
  void* attended = rows.activations().attended;
  const auto merge_row = [&](const auto* past_row, const auto* own_row, int row, float* out) {
    for (int head = 0; head < num_heads; ++head) {
      const float past_lse = past.lse.data_ptr<float>()[head * num_rows + row];
      const float own_lse = own.lse.data_ptr<float>()[head * num_rows + row];
      const float past_share = 1.0f / (1.0f + std::exp(own_lse - past_lse));
      for (int i = head * head_dim; i < (head + 1) * head_dim; ++i) {
        out[i] = past_share * ToFloat(past_row[i]) + (1.0f - past_share) * ToFloat(own_row[i]);
      }
    }
  };
  ForRows(num_rows, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const size_t at = static_cast<size_t>(row) * size;
      float* out = rows.Unrounded(attended, row, size);
      if (rows.compute_dtype() == DType::kF32) {
        merge_row(static_cast<const float*>(past.out.data_ptr()) + at,
                  static_cast<const float*>(own.out.data_ptr()) + at, row, out);
      } else {
        merge_row(static_cast<const BF16*>(past.out.data_ptr()) + at,
                  static_cast<const BF16*>(own.out.data_ptr()) + at, row, out);
      }
    }
    rows.Round(attended, begin, end, size);
  });
}

void AtenPrefillMath::Attend(TokenRows& rows, int layer, int window) {
  const c10::InferenceMode inference;
  AdoptThread();
  const TokenRows::Sequence& sequence = rows.sequences()[0];
  const int start = sequence.start_position, end = sequence.context_len();
  const bool is_windowed = window > 0 && end > window;
  // The window of the chunk's first row reaches back to here, those of later rows less far.
  const int begin = is_windowed ? std::max(0, start + 1 - window) : 0;
  GatherCache(rows, layer, begin, end);

  const at::Tensor queries = Queries(rows);
  const int64_t num_keys = end - begin, head_dim = rows.config().head_dim;
  const auto cached = [&](const at::Tensor& buffer, int64_t first, int64_t count) {
    const std::byte* data = static_cast<const std::byte*>(buffer.data_ptr());
    return Wrap(data + first * head_dim * DTypeBytes(rows.compute_dtype()), rows.compute_dtype(),
                {1, rows.config().num_kv_heads, count, head_dim},
                {0, num_keys * head_dim, head_dim, 1});
  };
  const auto attend = [&](int64_t first, int64_t count, bool is_causal,
                          const std::optional<at::Tensor>& mask) {
    return FlashAttention(queries, cached(keys_, first, count), cached(values_, first, count),
                          is_causal, mask);
  };

  if (!is_windowed && start > 0) {
    // Causality is aligned with the first key, so the chunk's own square is a call of its own.
    Merge(attend(0, start, /*is_causal=*/false, {}),
          attend(start, end - start, /*is_causal=*/true, {}), rows);
    return;
  }
  const Attention all = is_windowed ? attend(0, num_keys, false, WindowMask(rows, begin, window))
                                    : attend(0, num_keys, /*is_causal=*/true, {});
  std::memcpy(rows.activations().attended, all.out.data_ptr(), all.out.nbytes());
}

}  // namespace

std::unique_ptr<PrefillMath> PrefillMath::Create(ComputePool& pool, int num_threads) {
  return std::make_unique<AtenPrefillMath>(pool, num_threads);
}

}  // namespace tokenbutler
