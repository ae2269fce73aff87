#pragma once

#include <cstddef>

#include "base/compute_pool.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// How much attention the cached tokens of one KV head get from consecutive queries, each of which
// sees the tokens up to its own: column sums of the causal softmax, over the query heads h of the
// KV head,
//   mass[t] += sum_i sum_h exp(softmax_scale * query[i, h] . k[t] - lse[i, h])
// for t <= position(i) = first_position + i, with lse[i, h] over those t. What SnapKV and H2O
// choose by.
inline constexpr int kAttentionMassBatch = 8;    // queries that share a pass over the keys
inline constexpr int kAttentionMassRange = 512;  // tokens that a task adds up

struct AttentionMassParams {
  // Row i, [group_size, head_dim] after RoPE, begins `stride` floats after row i - 1.
  const float* queries = nullptr;
  size_t stride = 0;
  int num_rows = 0;
  int group_size = 1;
  int first_position = 0;
  // Base of each block of the sequence in token order, up to the last row's.
  const std::byte* const* blocks = nullptr;
  KvLayout layout;  // head_dim at most 512
  int layer = 0;
  int kv_head = 0;
  float softmax_scale = 1;
  float* mass = nullptr;  // [first_position + num_rows]
  float* lse = nullptr;   // out: [num_rows, group_size]
};

// Float32. Reads the keys twice for each kAttentionMassBatch queries. A token's sum adds the
// queries in order: the result is the same, bit for bit, for every number of threads and also when
// the rows come in several calls.
void AttentionMass(const AttentionMassParams& params, ComputePool& pool);

// The specification; float64 inside.
void AttentionMassPlain(const AttentionMassParams& params);

}  // namespace tokenbutler
