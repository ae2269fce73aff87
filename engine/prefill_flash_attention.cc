#include "engine/prefill_flash_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "engine/kernels/kv_row.h"
#include "engine/prefill_rows.h"
#include "engine/prefill_tasks.h"
#include "engine/prefill_tensors.h"

namespace tokenbutler {
namespace {

constexpr int kAttentionRowsPerTask = 128;  // short, so that little above the diagonal is computed

// What attention over some tokens gives: the weighted values and the log-sum-exp of the logits.
struct Attention {
  at::Tensor out;  // [1, num_rows, num_heads, head_dim] compute, contiguous
  at::Tensor lse;  // [1, num_heads, num_rows] float32, contiguous
};

// `query` [1, num_heads, num_rows, head_dim]; `key`, `value` [1, 1, num_keys, head_dim];
// `mask` [num_rows, num_keys], added to the logits; is_causal: row i sees the keys 0 ... i.
Attention AttendPart(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     bool is_causal, const std::optional<at::Tensor>& mask = {}) {
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, /*dropout_p=*/0, is_causal, mask);
  return {out.transpose(1, 2).contiguous(), lse.contiguous()};
}

// T: the compute dtype. A: the dtype that attention is computed in. The KV cache may have any: its
// rows are widened, or rounded, to A.
template <typename T, typename A>
class FlashAttention : public PrefillAttention {
 public:
  explicit FlashAttention(ComputePool& pool) : pool_(pool) {}

  void Attend(TokenRows& rows, int layer, int window) override;

 private:
  // One KV head's query heads over a block of the chunk's rows.
  struct Task {
    int kv_head = 0;
    int begin = 0, end = 0;  // rows
  };

  // Copies the keys and values of tokens [first, end) of the cache into keys_ and values_.
  void GatherCache(const TokenRows& rows, int layer, int first, int end);
  void CopyQueries(const TokenRows& rows);
  void AttendTask(const TokenRows& rows, const Task& task, int first, int window);

  ComputePool& pool_;
  std::vector<A> queries_;        // [num_kv_heads, num_rows, group_size, head_dim]
  std::vector<A> keys_, values_;  // [num_kv_heads, end - first, head_dim]
};

template <typename T>
T* Reserve(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

template <typename T, typename A>
void FlashAttention<T, A>::CopyQueries(const TokenRows& rows) {
  const ModelConfig& config = rows.config();
  const int size = config.group_size() * config.head_dim;  // of one KV head and row
  const size_t num_rows = rows.num_rows();
  A* queries = Reserve(queries_, num_rows * rows.attended_size());
  pool_.ParallelFor(rows.num_rows(), [&](int row) {
    const float* query = rows.activations().qkv + static_cast<size_t>(row) * rows.qkv_size();
    for (int head = 0; head < config.num_kv_heads; ++head) {
      FromFloats(query + head * size, size, queries + (head * num_rows + row) * size);
    }
  });
}

template <typename T, typename A>
void FlashAttention<T, A>::GatherCache(const TokenRows& rows, int layer, int first, int end) {
  const KvLayout& layout = rows.kv_store().layout();
  const std::vector<std::byte*>& blocks = rows.sequences()[0].blocks;
  const size_t head_size = static_cast<size_t>(end - first) * layout.head_dim;
  A* keys = Reserve(keys_, layout.num_kv_heads * head_size);
  A* values = Reserve(values_, layout.num_kv_heads * head_size);
  const int first_block = first / layout.block_size;
  RunLibTorchTasks(pool_, layout.blocks_for(end) - first_block, [&](int task) {
    const int block_begin = (first_block + task) * layout.block_size;
    const int token = std::max(first, block_begin);
    const int num_tokens = std::min(end, block_begin + layout.block_size) - token;
    const std::byte* block = blocks[first_block + task];
    thread_local std::vector<float> widened;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const size_t to = head * head_size + static_cast<size_t>(token - first) * layout.head_dim;
      const int row = token - block_begin;
      ReadRows(KeyRowsOf(layout, block, layer, head, row), layout, num_tokens, &widened, keys + to);
      ReadRows(ValueRowsOf(layout, block, layer, head, row), layout, num_tokens, &widened,
               values + to);
    }
  });
}

// Hides from row i, at `position` + i, the tokens after it and those its window does not reach.
// [num_rows, num_keys], the first key is that of token `first`.
template <typename T>
at::Tensor WindowMask(int position, int num_rows, int first, int num_keys, int window) {
  at::Tensor mask = at::empty({num_rows, num_keys}, kScalarType<T>);
  T hidden, seen{};
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  FromFloats(&minus_infinity, 1, &hidden);
  T* row = static_cast<T*>(mask.data_ptr());
  for (int i = 0; i < num_rows; ++i, row += num_keys) {
    const int end = position + i + 1 - first;
    std::fill_n(row, num_keys, hidden);
    std::fill(row + std::max(0, end - window), row + end, seen);
  }
  return mask;
}

// Writes the attention over a block's own keys and, where there is one, over those before it,
// weighted by their shares of the softmax's sum. The rows of `past` are those of `own` times the
// heads. `attended`: the first row's heads; rows are `stride` elements apart.
template <typename A, typename T>
void MergeParts(const Attention& own, const Attention* past, int stride, T* attended) {
  const int64_t num_rows = own.out.size(1), group = own.out.size(2), d = own.out.size(3);
  const A* own_row = static_cast<const A*>(own.out.data_ptr());
  const A* past_row = past == nullptr ? own_row : static_cast<const A*>(past->out.data_ptr());
  const float* own_lse = own.lse.data_ptr<float>();
  const float* past_lse = past == nullptr ? own_lse : past->lse.data_ptr<float>();
  std::vector<float> merged(group * d);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t head = 0; head < group; ++head) {
      const float difference = own_lse[head * num_rows + row] - past_lse[row * group + head];
      const float share = past == nullptr ? 0.0f : 1.0f / (1.0f + std::exp(difference));
      for (int64_t i = head * d; i < (head + 1) * d; ++i) {
        merged[i] = share * ToFloat(past_row[i]) + (1.0f - share) * ToFloat(own_row[i]);
      }
    }
    FromFloats(merged.data(), static_cast<int>(group * d), attended);
    own_row += group * d;
    past_row += group * d;
    attended += stride;
  }
}

template <typename T, typename A>
void FlashAttention<T, A>::AttendTask(const TokenRows& rows, const Task& task, int first,
                                      int window) {
  const TokenRows::Sequence& sequence = rows.sequences()[0];
  const int64_t group = rows.config().group_size(), d = rows.config().head_dim;
  const int64_t num_rows = task.end - task.begin;
  const int64_t cached_tokens = sequence.context_len() - first;
  const int position = sequence.start_position + task.begin;
  // The keys before the block's first row that any row of it sees, and the block's own.
  const int past_first = window > 0 ? std::max(first, position + 1 - window) : first;
  const int num_past = position - past_first;

  const A* query = queries_.data() + (task.kv_head * rows.num_rows() + task.begin) * group * d;
  const at::Tensor by_head = Wrap(query, {1, group, num_rows, d}, {0, d, group * d, 1});
  const auto cached = [&](const std::vector<A>& buffer, int64_t token, int64_t count) {
    return Wrap(buffer.data() + (task.kv_head * cached_tokens + token - first) * d,
                {1, 1, count, d}, {0, 0, d, 1});
  };

  Attention own, past;
  const bool is_windowed = window > 0 && position + num_rows > window;
  if (is_windowed) {
    const int num_keys = num_past + static_cast<int>(num_rows);
    own = AttendPart(
        by_head, cached(keys_, past_first, num_keys), cached(values_, past_first, num_keys),
        /*is_causal=*/false,
        WindowMask<A>(position, static_cast<int>(num_rows), past_first, num_keys, window));
  } else {
    own = AttendPart(by_head, cached(keys_, position, num_rows),
                     cached(values_, position, num_rows), /*is_causal=*/true);
  }
  const bool has_past = !is_windowed && num_past > 0;
  if (has_past) {
    // All see all of it, so the group's heads are rows of one head: [num_rows * group, head_dim].
    const at::Tensor flat = Wrap(query, {1, 1, num_rows * group, d}, {0, 0, d, 1});
    past = AttendPart(flat, cached(keys_, past_first, num_past),
                      cached(values_, past_first, num_past), /*is_causal=*/false);
  }

  T* attended = static_cast<T*>(rows.activations().attended) +
                static_cast<size_t>(task.begin) * rows.attended_size() + task.kv_head * group * d;
  MergeParts<A>(own, has_past ? &past : nullptr, rows.attended_size(), attended);
}

template <typename T, typename A>
void FlashAttention<T, A>::Attend(TokenRows& rows, int layer, int window) {
  const TokenRows::Sequence& sequence = rows.sequences()[0];
  // The first token that any row sees; rows of the chunk append their own before this.
  const int first = window > 0 ? std::max(0, sequence.start_position + 1 - window) : 0;
  GatherCache(rows, layer, first, sequence.context_len());
  CopyQueries(rows);

  // Later blocks attend to more: they go first, so that no thread is left with a long one.
  const int num_blocks = (rows.num_rows() + kAttentionRowsPerTask - 1) / kAttentionRowsPerTask;
  const int num_kv_heads = rows.config().num_kv_heads;
  RunLibTorchTasks(pool_, num_blocks * num_kv_heads, [&](int index) {
    const int begin = (num_blocks - 1 - index / num_kv_heads) * kAttentionRowsPerTask;
    AttendTask(rows,
               {.kv_head = index % num_kv_heads,
                .begin = begin,
                .end = std::min(rows.num_rows(), begin + kAttentionRowsPerTask)},
               first, window);
  });
}

}  // namespace

std::unique_ptr<PrefillAttention> CreateFlashAttention(DType compute_dtype, ComputePool& pool) {
  if (compute_dtype == DType::kF32) return std::make_unique<FlashAttention<float, float>>(pool);
  // Without AMX, LibTorch's bf16 attention multiplies in float32 all the same, and rounds more.
  if (at::cpu::init_amx()) return std::make_unique<FlashAttention<BF16, BF16>>(pool);
  return std::make_unique<FlashAttention<BF16, float>>(pool);
}

}  // namespace tokenbutler
