#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "base/compute_pool.h"
#include "engine/kernels/cpu/attention_piece.h"

namespace tokenbutler {

// What one query row attends to in one KV head, and where the result goes.
struct AttentionTask {
  AttentionPiece piece;       // all of it; states are RunAttentionTasks'
  float* out = nullptr;       // [group_size, head_dim]
  float* lse = nullptr;       // [group_size], or null
  bool want_weights = false;  // turns piece.logits into softmax weights
};

// For RunAttentionTasks over `num_queries` query rows of `num_heads` heads each.
size_t AttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim);

// Runs task(0) .. task(num_tasks - 1), all of the same layout and group_size, each with at least
// one token. `task` must be cheap, give the same every time, and may be called by any thread.
//
// A task is cut into pieces by its number of tokens alone, whatever the other tasks and the number
// of threads are; threads share the pieces, and the last thread of a task merges them in order.
void RunAttentionTasks(int num_tasks, absl::FunctionRef<AttentionTask(int)> task, float* workspace,
                       ComputePool& pool);

}  // namespace tokenbutler
