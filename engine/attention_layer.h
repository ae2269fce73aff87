#pragma once

#include <vector>

#include "base/status.h"
#include "base/tensor_view.h"
#include "engine/dense_math.h"
#include "engine/models/model_config.h"
#include "engine/token_rows.h"
#include "engine/weights/model_weights.h"

namespace tokenbutler {

// The attention half of one transformer layer: grouped-query attention with rotary positions over
// the KV cache. Immutable; the weights' owner must outlive it.
class AttentionLayer {
 public:
  // INTERNAL when q, k and v are not adjacent in memory.
  static absl::StatusOr<AttentionLayer> Create(const ModelConfig& config,
                                               const LayerWeights& weights, int layer);

  // activations().normed -> activations().projected; the rows' keys and values join the KV cache.
  void Run(TokenRows& rows, DenseMath& math) const;

 private:
  AttentionLayer() = default;

  int layer_ = 0;
  int window_ = 0;               // tokens each row sees, itself included; 0: all
  TensorView qkv_;               // [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
  std::vector<float> qkv_bias_;  // [(num_heads + 2 * num_kv_heads) * head_dim], or empty
  TensorView o_;                 // [hidden_size, num_heads * head_dim]
  TensorView o_bias_;            // [hidden_size], or empty
};

}  // namespace tokenbutler
