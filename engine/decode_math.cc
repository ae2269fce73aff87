#include "engine/decode_math.h"

#include <cmath>

#include "engine/kernels/linear.h"

namespace tokenbutler {

absl::Status DecodeMath::Reserve(int num_rows, const ModelConfig& config) {
  queries_.reserve(num_rows);
  const size_t bytes =
      DecodeAttentionWorkspaceFloats(num_rows, config.num_heads, config.head_dim) * sizeof(float);
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
  queries_.clear();
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    const int row = sequence.first_row;
    queries_.push_back(
        {.query = rows.activations().qkv + static_cast<size_t>(row) * rows.qkv_size(),
         .blocks = sequence.blocks.data(),
         .context_len = sequence.context_len(),
         .out = rows.Unrounded(attended, row, rows.attended_size())});
  }
  DecodeAttention({.queries = queries_,
                   .layout = rows.kv_store().layout(),
                   .layer = layer,
                   .num_heads = config.num_heads,
                   .window = window,
                   .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                   .workspace = workspace_.as<float>()},
                  pool_);
  rows.Round(attended, 0, rows.num_rows(), rows.attended_size());
}

}  // namespace tokenbutler
