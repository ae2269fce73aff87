#include "engine/prefill_attention.h"

#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <vector>

#include "engine/kernels/kernel_target.h"
#include "engine/kernels/softmax_block.h"
#include "engine/packed_kv.h"
#include "engine/prefill_flash_attention.h"
#include "engine/prefill_rows.h"
#include "engine/prefill_tasks.h"

namespace tokenbutler {
namespace {

constexpr int kTileRows = 64;   // of a product; every one has as many, so few kernels are compiled
constexpr int kTaskRows = 256;  // that share the reading of a block of keys and values
constexpr size_t kAlignment = 64;

// c [m, n] = (adds ? c : 0) + a [m, k] * b [k, n], b as in PackedKv, its rows ld_b apart. oneDNN
// compiles a kernel for each shape, once per thread.
struct Product {
  int m, n, k, ld_b;
  bool adds;
};
void Multiply(const Product& p, const float* a, const float* b, float* c) {
  at::native::cpublas::brgemm(p.m, p.n, p.k, p.k, p.ld_b, p.n, p.adds, a, b, c, /*is_vnni=*/false);
}
void Multiply(const Product& p, const BF16* a, const BF16* b, float* c) {
  at::native::cpublas::brgemm(p.m, p.n, p.k, p.k, p.ld_b, p.n, p.adds,
                              reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

// A growing array on cache lines of its own.
template <typename T>
class AlignedArray {
 public:
  // Contents are lost. Throws std::bad_alloc.
  T* Reserve(size_t size) {
    const size_t padded = size + kAlignment / sizeof(T);
    if (storage_.size() < padded) storage_ = std::vector<T>(padded);
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    const size_t skipped = (kAlignment - address % kAlignment) % kAlignment / sizeof(T);
    return storage_.data() + skipped;
  }

 private:
  std::vector<T> storage_;
};

// What one thread works in.
template <typename A>
struct Workspace {
  AlignedArray<A> queries;     // [padded rows, padded_dim]
  AlignedArray<float> acc;     // [padded rows, padded_dim]
  AlignedArray<float> logits;  // [kTileRows, PackedKv::kTokens]
  AlignedArray<A> weights;     // the same; unused for float32, where they replace the logits
  std::vector<OnlineSoftmaxState> states;  // [padded rows]
  std::vector<float> finished;             // [group_size, head_dim]
};

// Flash attention (arXiv 2205.14135) in blocks of keys. T: the compute dtype, of the result. A: of
// what is multiplied.
template <typename T, typename A>
class BlockAttention : public PrefillAttention {
 public:
  explicit BlockAttention(ComputePool& pool) : pool_(pool) {}

  void Attend(TokenRows& rows, int layer, int window) override;

 private:
  static constexpr int kBlockTokens = PackedKv<A>::kTokens;
  static constexpr int kHalfBlock = kBlockTokens / 2;  // of which less lies beyond the diagonal

  // One KV head's query heads over some of the chunk's rows, flattened: row i is query head
  // i % group_size of the chunk's row begin + i / group_size.
  struct Task {
    int kv_head = 0;
    int begin = 0, end = 0;  // rows of the chunk
    int group_size = 0;
    int position = 0;  // of `begin`
    int window = 0;
    int num_rows() const { return (end - begin) * group_size; }
    int num_padded() const { return (num_rows() + kTileRows - 1) / kTileRows * kTileRows; }
  };

  void AttendTask(const TokenRows& rows, const Task& task);
  // The queries, [task.num_padded(), padded_dim], zeros where there is none.
  const A* CopyQueries(const TokenRows& rows, const Task& task, Workspace<A>* workspace) const;
  // Adds a block's tokens to a tile of rows, of which `row` is the first.
  void AddBlock(const Task& task, int block, int row, const A* queries, OnlineSoftmaxState* states,
                Workspace<A>* workspace) const;

  ComputePool& pool_;
  PackedKv<A> kv_;
  float softmax_scale_ = 1;
};

template <typename T, typename A>
const A* BlockAttention<T, A>::CopyQueries(const TokenRows& rows, const Task& task,
                                           Workspace<A>* workspace) const {
  const int head_dim = rows.config().head_dim, padded_dim = kv_.padded_dim();
  const size_t size = static_cast<size_t>(task.num_padded()) * padded_dim;
  A* queries = workspace->queries.Reserve(size);
  std::fill_n(queries, size, A{});
  A* to = queries;
  for (int row = task.begin; row < task.end; ++row) {
    const float* query = rows.activations().qkv + static_cast<size_t>(row) * rows.qkv_size() +
                         static_cast<size_t>(task.kv_head) * task.group_size * head_dim;
    for (int h = 0; h < task.group_size; ++h, query += head_dim, to += padded_dim) {
      FromFloats(query, head_dim, to);
    }
  }
  return queries;
}

template <typename T, typename A>
void BlockAttention<T, A>::AddBlock(const Task& task, int block, int row, const A* queries,
                                    OnlineSoftmaxState* states, Workspace<A>* workspace) const {
  const int padded_dim = kv_.padded_dim();
  VisibleKeys visible[kTileRows];
  int last = 0;
  for (int i = 0; i < kTileRows && row + i < task.num_rows(); ++i) {
    const int end = task.position + (row + i) / task.group_size + 1 - block * kBlockTokens;
    const int begin = task.window > 0 ? end - task.window : 0;
    visible[i] = {.begin = std::max(begin, 0), .end = std::min(end, kBlockTokens)};
    if (visible[i].begin < visible[i].end) last = std::max(last, visible[i].end);
  }
  if (last == 0) return;
  const int num_keys = last <= kHalfBlock ? kHalfBlock : kBlockTokens;
  float* logits = workspace->logits.Reserve(kTileRows * kBlockTokens);
  Multiply({.m = kTileRows, .n = num_keys, .k = padded_dim, .ld_b = kBlockTokens, .adds = false},
           queries + static_cast<size_t>(row) * padded_dim, kv_.keys(task.kv_head, block), logits);
  A* weights;
  if constexpr (std::is_same_v<A, float>) {
    weights = logits;
  } else {
    weights = workspace->weights.Reserve(kTileRows * kBlockTokens);
  }
  SoftmaxBlock({.logits = logits,
                .weights = weights,
                .weights_dtype = std::is_same_v<A, float> ? DType::kF32 : DType::kBF16,
                .num_rows = kTileRows,
                .num_keys = num_keys,
                .visible = visible,
                .softmax_scale = softmax_scale_,
                .states = states + row,
                .head_dim = padded_dim});
  Multiply({.m = kTileRows, .n = padded_dim, .k = num_keys, .ld_b = padded_dim, .adds = true},
           weights, kv_.values(task.kv_head, block), states[row].acc);
}

template <typename T, typename A>
void BlockAttention<T, A>::AttendTask(const TokenRows& rows, const Task& task) {
  const int head_dim = rows.config().head_dim, padded_dim = kv_.padded_dim();
  thread_local Workspace<A> workspace;
  const A* queries = CopyQueries(rows, task, &workspace);
  float* acc = workspace.acc.Reserve(static_cast<size_t>(task.num_padded()) * padded_dim);
  workspace.states.resize(task.num_padded());
  OnlineSoftmaxState* states = workspace.states.data();
  for (int i = 0; i < task.num_padded(); ++i) {
    states[i].acc = acc + static_cast<size_t>(i) * padded_dim;
    states[i].Reset(padded_dim);
  }

  const int first = task.window > 0 ? std::max(0, task.position + 1 - task.window) : 0;
  const int last = task.position + (task.end - task.begin) - 1;
  for (int block = first / kBlockTokens; block <= last / kBlockTokens; ++block) {
    for (int row = 0; row < task.num_rows(); row += kTileRows) {
      AddBlock(task, block, row, queries, states, &workspace);
    }
  }
  at::native::cpublas::brgemm_release(std::is_same_v<A, BF16>);

  const int size = task.group_size * head_dim;
  workspace.finished.resize(size);
  T* attended = static_cast<T*>(rows.activations().attended) +
                static_cast<size_t>(task.begin) * rows.attended_size() +
                static_cast<size_t>(task.kv_head) * size;
  for (int row = task.begin; row < task.end; ++row, attended += rows.attended_size()) {
    for (int h = 0; h < task.group_size; ++h, ++states) {
      states->Finish(workspace.finished.data() + static_cast<size_t>(h) * head_dim, head_dim);
    }
    FromFloats(workspace.finished.data(), size, attended);
  }
}

template <typename T, typename A>
void BlockAttention<T, A>::Attend(TokenRows& rows, int layer, int window) {
  const TokenRows::Sequence& sequence = rows.sequences()[0];
  const ModelConfig& config = rows.config();
  softmax_scale_ = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  // The first token that any row sees; rows of the chunk append their own before this.
  const int first = window > 0 ? std::max(0, sequence.start_position + 1 - window) : 0;
  kv_.Gather(rows, layer, first, sequence.context_len(), pool_);

  // Later blocks attend to more: they go first, so that no thread is left with a long one.
  const int rows_per_task = std::max(1, kTaskRows / config.group_size());
  const int num_blocks = (rows.num_rows() + rows_per_task - 1) / rows_per_task;
  RunLibTorchTasks(pool_, num_blocks * config.num_kv_heads, [&](int index) {
    const int begin = (num_blocks - 1 - index / config.num_kv_heads) * rows_per_task;
    AttendTask(rows, {.kv_head = index % config.num_kv_heads,
                      .begin = begin,
                      .end = std::min(rows.num_rows(), begin + rows_per_task),
                      .group_size = config.group_size(),
                      .position = sequence.start_position + begin,
                      .window = window});
  });
}

// Whether oneDNN has such products on this CPU: its environment may have told it not to
// (ONEDNN_MAX_CPU_ISA). It throws errors of its own, LibTorch others.
template <typename A>
bool Multiplies(A one) {
  constexpr int kSize = 16;
  const std::vector<A> ones(kSize * kSize, one);
  std::vector<float> sums(kSize * kSize);
  try {
    Multiply({.m = kSize, .n = kSize, .k = kSize, .ld_b = kSize, .adds = false}, ones.data(),
             ones.data(), sums.data());
    at::native::cpublas::brgemm_release(std::is_same_v<A, BF16>);
  } catch (const std::exception&) {
    return false;
  }
  return std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == kSize; });
}

}  // namespace

PrefillAttentionKind FastestPrefillAttention(DType compute_dtype) {
  const CpuTarget target = KernelTarget();
  if (target < CpuTarget::kAvx2) return PrefillAttentionKind::kLibTorch;
  if (compute_dtype == DType::kBF16 && target == CpuTarget::kAvx512Bf16 &&
      Multiplies(ToBF16(1.0f))) {
    return PrefillAttentionKind::kBf16Blocks;
  }
  return Multiplies(1.0f) ? PrefillAttentionKind::kFloatBlocks : PrefillAttentionKind::kLibTorch;
}

std::unique_ptr<PrefillAttention> PrefillAttention::Create(PrefillAttentionKind kind,
                                                           DType compute_dtype, ComputePool& pool) {
  const bool is_bf16 = compute_dtype == DType::kBF16;
  switch (kind) {
    case PrefillAttentionKind::kBf16Blocks:
      if (is_bf16) return std::make_unique<BlockAttention<BF16, BF16>>(pool);
      return std::make_unique<BlockAttention<float, BF16>>(pool);
    case PrefillAttentionKind::kFloatBlocks:
      if (is_bf16) return std::make_unique<BlockAttention<BF16, float>>(pool);
      return std::make_unique<BlockAttention<float, float>>(pool);
    case PrefillAttentionKind::kLibTorch:
      break;
  }
  return CreateFlashAttention(compute_dtype, pool);
}

}  // namespace tokenbutler
