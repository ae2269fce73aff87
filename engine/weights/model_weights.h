#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/tensor_view.h"

namespace tokenbutler {

// All views are row-major in host memory. Matrices have the compute dtype (bf16 or float32) and
// shape [out_features, in_features]; norms and biases are always float32. Absent biases are empty.
struct LayerWeights {
  TensorView input_norm;  // [hidden_size]
  TensorView q_proj;      // [num_heads * head_dim, hidden_size]
  TensorView k_proj;      // [num_kv_heads * head_dim, hidden_size]
  TensorView v_proj;      // [num_kv_heads * head_dim, hidden_size]
  TensorView q_bias, k_bias, v_bias;
  TensorView o_proj;  // [hidden_size, num_heads * head_dim]
  TensorView o_bias;
  TensorView post_attention_norm;  // [hidden_size]
  TensorView gate_proj, up_proj;   // [intermediate_size, hidden_size]
  TensorView gate_bias, up_bias;   // [intermediate_size]
  TensorView down_proj;            // [hidden_size, intermediate_size]
  TensorView down_bias;            // [hidden_size]
};

struct ModelWeights {
  TensorView token_embedding;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;
  TensorView final_norm;  // [hidden_size]
  TensorView lm_head;     // [vocab_size, hidden_size]; the embedding itself when tied

  // What the views point into. q, k and v of a layer are adjacent, so [q; k; v] is one matrix
  // [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]; gate and up likewise, and so are
  // their biases.
  std::vector<Buffer> storage;
};

}  // namespace tokenbutler
