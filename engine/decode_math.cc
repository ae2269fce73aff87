#include "engine/decode_math.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/linear.h"
#include "engine/sequence_attention.h"

namespace tokenbutler {

absl::Status DecodeMath::Reserve(int num_rows, const ModelConfig& config) {
  queries_.reserve(num_rows);
  sparse_queries_.reserve(num_rows);
  const size_t floats =
      std::max(DecodeAttentionWorkspaceFloats(num_rows, config.num_heads, config.head_dim),
               SparseAttentionWorkspaceFloats(num_rows, config.num_heads, config.head_dim));
  const size_t bytes = floats * sizeof(float);
  if (workspace_.size() >= bytes) return absl::OkStatus();
  workspace_ = Buffer();
  ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(bytes, MemoryKind::kHugePage));
  return absl::OkStatus();
}

void DecodeMath::Linear(const void* x, const TensorView& weight, const float* bias, float* y,
                        int num_rows) {
  tokenbutler::Linear({.x = x,
                       .x_dtype = weight.dtype,
                       .weight = weight.data,
                       .weight_dtype = weight.dtype,
                       .bias = bias,
                       .y = y,
                       .num_rows = num_rows,
                       .in_features = static_cast<int>(weight.shape[1]),
                       .out_features = static_cast<int>(weight.shape[0])},
                      pool_);
}

void DecodeMath::Attend(TokenRows& rows, int layer, int window) {
  const ModelConfig& config = rows.config();
  void* attended = rows.activations().attended;
  const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  queries_.clear();
  sparse_queries_.clear();
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    const int row = sequence.first_row;
    const float* query = rows.activations().qkv + static_cast<size_t>(row) * rows.qkv_size();
    float* out = rows.Unrounded(attended, row, rows.attended_size());
    SequenceAttention* attention = sequence.attention;
    float* lse = attention == nullptr ? nullptr : attention->lse(layer);
    if (attention == nullptr || !attention->is_sparse()) {
      queries_.push_back({.query = query,
                          .blocks = attention == nullptr ? sequence.blocks.data()
                                                         : attention->all_tokens(sequence.blocks),
                          .context_len = sequence.context_len(),
                          .out = out,
                          .lse = lse});
      continue;
    }
    const ResidentView& view = attention->view();
    sparse_queries_.push_back({.query = query,
                               .blocks = view.blocks,
                               .rows = view.rows,
                               .num_rows = view.num_rows,
                               .first_query = attention->sink_query(),
                               .num_first_rows = attention->num_sink_rows(),
                               .out = out,
                               .lse = lse,
                               .weights = attention->weights()});
  }
  if (!queries_.empty()) {
    DecodeAttention({.queries = queries_,
                     .layout = rows.kv_store().layout(),
                     .layer = layer,
                     .num_heads = config.num_heads,
                     .window = window,
                     .softmax_scale = softmax_scale,
                     .workspace = workspace_.as<float>()},
                    pool_);
  }
  if (!sparse_queries_.empty()) {
    SparseAttention({.queries = sparse_queries_,
                     .layout = rows.kv_store().layout(),
                     .layer = layer,
                     .num_heads = config.num_heads,
                     .softmax_scale = softmax_scale,
                     .workspace = workspace_.as<float>()},
                    pool_);
  }
  rows.Round(attended, 0, rows.num_rows(), rows.attended_size());
}

}  // namespace tokenbutler
