#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/attention_layer.h"
#include "engine/dense_math.h"
#include "engine/mlp_layer.h"
#include "engine/models/model_config.h"
#include "engine/token_rows.h"
#include "engine/weights/model_weights.h"

namespace tokenbutler {

// A decoder-only transformer: embedding, layers, output head. Knows neither requests nor steps, and
// not whether its rows are a decode step or a prefill chunk (DenseMath does). Immutable; the
// weights' owner must outlive it.
class Transformer {
 public:
  // INVALID_ARGUMENT naming the weight whose shape or dtype does not fit `config`.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             const ModelWeights& weights);

  // bf16 or float32: what all matrices have.
  DType compute_dtype() const { return lm_head_.dtype; }

  // Takes the rows' tokens through all layers: their keys and values join the KV cache, and
  // activations().normed becomes the final norm of what the last layer gives.
  void Run(TokenRows& rows, DenseMath& math) const;

  // The logits of rows [first_row, first_row + num_rows) after Run. `logits` [num_rows,
  // vocab_size].
  void Logits(const TokenRows& rows, int first_row, int num_rows, DenseMath& math,
              float* logits) const;

 private:
  struct Layer {
    AttentionLayer attention;
    TensorView post_attention_norm;  // [hidden_size]
    MlpLayer mlp;
    TensorView next_norm;  // [hidden_size]: the next layer's input norm, or the final one
  };

  Transformer() = default;

  TensorView token_embedding_;  // [vocab_size, hidden_size]
  TensorView first_norm_;       // [hidden_size]
  std::vector<Layer> layers_;
  TensorView lm_head_;  // [vocab_size, hidden_size]
};

}  // namespace tokenbutler
