#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/online_softmax.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// What the attention kernels are made of: some tokens of one query row, for the query heads of one
// KV head. Tasks of DecodeAttention and SparseAttention.
struct AttentionPiece {
  const KvLayout* layout = nullptr;
  int layer = 0;
  int kv_head = 0;
  const std::byte* const* blocks = nullptr;
  // The rows in question: rows[begin..end), or, when null, begin..end - 1 themselves.
  const int32_t* rows = nullptr;
  int begin = 0, end = 0;
  const float* queries = nullptr;  // [group_size, head_dim] of this KV head
  // Before position num_first of `rows`, these instead.
  const float* first_queries = nullptr;  // [group_size, head_dim]
  int num_first = 0;
  int group_size = 0;
  float softmax_scale = 1;
  OnlineSoftmaxState* states = nullptr;  // [group_size]; the tokens are added
  // [group_size] arrays that take the scaled logits at [begin, end), or null.
  float* const* logits = nullptr;
};

// Tokens whose logits are taken together. Tiles end at multiples of this: of the position in a list
// of rows, of the row in its block otherwise (and at the block's end).
inline constexpr int kAttentionTileTokens = 64;

// Adds the tokens of the piece to its states.
void AttendPiece(const AttentionPiece& piece);

// weights[i] = exp(logit - max) / sum, in place of the logits.
void LogitsToWeights(float max, float sum, int num_tokens, float* logits);

}  // namespace tokenbutler
