#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Exact scores of every token of a range for one KV head, from the cached keys themselves:
//   scores[t - begin] = max_h (softmax_scale * query[h] . k[t] - lse[h])
// over the query heads h of the KV head. What the oracle selects by, and what probes compare
// selections with.
struct KeyScoresParams {
  const float* query = nullptr;  // [group_size, head_dim], after RoPE: the KV head's query heads
  int group_size = 0;            // query heads per KV head, >= 1
  // Base of each block of the sequence in token order; those of [begin, end) are touched.
  const std::byte* const* blocks = nullptr;
  int begin = 0, end = 0;  // tokens; nothing happens when empty, but lse_out becomes -inf
  // Ascending tokens to score instead: t in [begin, end) stands for tokens[t]. Null: t itself.
  const int32_t* tokens = nullptr;
  KvLayout layout;  // head_dim <= 2048
  int layer = 0;
  int kv_head = 0;
  float softmax_scale = 1;
  const float* lse = nullptr;  // [group_size], finite; null: zeros, the maximum of the raw logits
  float* scores = nullptr;     // [end - begin]
  // [group_size] log of sum_{t in [begin, end)} exp(softmax_scale * query[h] . k[t]), or null.
  float* lse_out = nullptr;
  // [KeyScoresWorkspaceFloats(...)], 64-byte aligned, when lse_out is not null; what it holds
  // afterwards is unspecified.
  float* workspace = nullptr;
};

size_t KeyScoresWorkspaceFloats(int group_size);

// Reads each key once for the whole group; float32. Ranges of tokens that depend on [begin, end)
// alone are what threads share: the result is the same, bit for bit, whatever their number is.
void KeyScores(const KeyScoresParams& params, ComputePool& pool);
// The same for several KV heads or sequences, whose ranges the threads share: each with outputs and
// workspace of its own.
void KeyScores(absl::Span<const KeyScoresParams> params, ComputePool& pool);

// The specification; float64 inside. Uses no workspace.
void KeyScoresPlain(const KeyScoresParams& params);

}  // namespace tokenbutler
