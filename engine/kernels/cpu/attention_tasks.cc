#include "engine/kernels/cpu/attention_tasks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

namespace tokenbutler {
namespace {

// A task is cut into at most kMaxPieces pieces of at least kMinPieceTokens tokens, multiples of the
// tile: pieces per KV head are what the threads share, and each costs a merge.
constexpr int kMaxPieces = 16;
constexpr int kMinPieceTokens = 512;
// Keys and values worth waking the other threads for.
constexpr size_t kMinParallelBytes = size_t{64} << 10;
constexpr size_t kCacheLine = 64;

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Cut {
  int piece_tokens = 0;
  int num_pieces = 0;
};

Cut CutTask(const AttentionPiece& all) {
  const int tokens = all.end - all.begin;
  const int share = (tokens + kMaxPieces - 1) / kMaxPieces;
  const auto aligned = static_cast<int>(RoundUp(share, kAttentionTileTokens));
  const int piece_tokens = std::max(kMinPieceTokens, aligned);
  return {.piece_tokens = piece_tokens, .num_pieces = (tokens + piece_tokens - 1) / piece_tokens};
}

// The workspace of a task: a counter of the pieces that are not finished, then
// [piece]{ OnlineSoftmaxState [group_size], acc [group_size][head_dim] }; all begin on cache lines
// of their own.
class TaskStates {
 public:
  TaskStates(float* workspace, const AttentionPiece& any_task)
      : workspace_(reinterpret_cast<std::byte*>(workspace)),
        group_size_(any_task.group_size),
        head_dim_(any_task.layout->head_dim),
        states_bytes_(RoundUp(group_size_ * sizeof(OnlineSoftmaxState), kCacheLine)),
        acc_bytes_(RoundUp(head_dim_ * sizeof(float), kCacheLine)),
        piece_bytes_(states_bytes_ + group_size_ * acc_bytes_),
        task_bytes_(kCacheLine + kMaxPieces * piece_bytes_) {}

  void SetNumPieces(int task, int num_pieces) const {
    new (workspace_ + task * task_bytes_) std::atomic<int>(num_pieces);
  }
  // True for the last piece: it then sees what the others left.
  bool FinishPiece(int task) const {
    auto* left = reinterpret_cast<std::atomic<int>*>(workspace_ + task * task_bytes_);
    return left->fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  // [group_size], no token seen.
  OnlineSoftmaxState* Create(int task, int piece) const {
    OnlineSoftmaxState* states = Get(task, piece);
    auto* accs = reinterpret_cast<std::byte*>(states) + states_bytes_;
    for (int h = 0; h < group_size_; ++h) {
      new (&states[h]) OnlineSoftmaxState{.acc = reinterpret_cast<float*>(accs + h * acc_bytes_)};
      states[h].Reset(head_dim_);
    }
    return states;
  }
  // [group_size], as left by the piece.
  OnlineSoftmaxState* Get(int task, int piece) const {
    return reinterpret_cast<OnlineSoftmaxState*>(workspace_ + task * task_bytes_ + kCacheLine +
                                                 piece * piece_bytes_);
  }

 private:
  std::byte* workspace_;
  int group_size_, head_dim_;
  size_t states_bytes_, acc_bytes_, piece_bytes_, task_bytes_;
};

// Merges head h's pieces into the first one.
void MergePieces(const TaskStates& states, int task, int num_pieces, int h, int head_dim) {
  OnlineSoftmaxState& merged = states.Get(task, 0)[h];
  float max = merged.max;
  for (int piece = 1; piece < num_pieces; ++piece) {
    max = std::max(max, states.Get(task, piece)[h].max);
  }
  for (int piece = 0; piece < num_pieces; ++piece) {
    const OnlineSoftmaxState& state = states.Get(task, piece)[h];
    const float scale = state.max == max ? 1.0f : std::exp(state.max - max);
    if (piece == 0) {
      merged.sum *= scale;
      for (int d = 0; d < head_dim; ++d) merged.acc[d] *= scale;
      continue;
    }
    merged.sum += state.sum * scale;
    for (int d = 0; d < head_dim; ++d) merged.acc[d] += state.acc[d] * scale;
  }
  merged.max = max;
}

void FinishTask(const AttentionTask& task, const TaskStates& states, int index, int num_pieces) {
  const int head_dim = task.piece.layout->head_dim;
  for (int h = 0; h < task.piece.group_size; ++h) {
    if (num_pieces > 1) MergePieces(states, index, num_pieces, h, head_dim);
    const OnlineSoftmaxState& merged = states.Get(index, 0)[h];
    merged.Finish(task.out + static_cast<size_t>(h) * head_dim, head_dim);
    if (task.lse != nullptr) task.lse[h] = merged.lse();
    if (task.want_weights) {
      LogitsToWeights(merged.max, merged.sum, task.piece.end - task.piece.begin,
                      task.piece.logits[h] + task.piece.begin);
    }
  }
}

}  // namespace

size_t AttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim) {
  // Per head at most one cache line of state, and its accumulator; per KV head a counter.
  const size_t head_bytes = kCacheLine + RoundUp(head_dim * sizeof(float), kCacheLine);
  return static_cast<size_t>(num_queries) * num_heads * (kMaxPieces * head_bytes + kCacheLine) /
         sizeof(float);
}

void RunAttentionTasks(int num_tasks, absl::FunctionRef<AttentionTask(int)> task, float* workspace,
                       ComputePool& pool) {
  if (num_tasks == 0) return;
  const TaskStates states(workspace, task(0).piece);
  int max_pieces = 1;
  size_t tokens = 0;
  size_t token_bytes = 0;
  for (int i = 0; i < num_tasks; ++i) {
    const AttentionPiece all = task(i).piece;
    const Cut cut = CutTask(all);
    states.SetNumPieces(i, cut.num_pieces);
    max_pieces = std::max(max_pieces, cut.num_pieces);
    tokens += all.end - all.begin;
    token_bytes = all.layout->token_row_bytes();
  }
  // Pieces of a task follow each other: neighbours read neighbouring memory.
  const auto attend = [&](int index) {
    const int i = index / max_pieces;
    const int piece = index % max_pieces;
    const AttentionTask whole = task(i);
    const Cut cut = CutTask(whole.piece);
    if (piece >= cut.num_pieces) return;
    AttentionPiece part = whole.piece;
    part.begin += piece * cut.piece_tokens;
    part.end = std::min(part.begin + cut.piece_tokens, part.end);
    part.states = states.Create(i, piece);
    AttendPiece(part);
    if (states.FinishPiece(i)) FinishTask(whole, states, i, cut.num_pieces);
  };
  if (tokens * token_bytes < kMinParallelBytes) {
    for (int index = 0; index < num_tasks * max_pieces; ++index) attend(index);
    return;
  }
  pool.ParallelFor(num_tasks * max_pieces, attend);
}

}  // namespace tokenbutler
