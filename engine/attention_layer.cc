#include "engine/attention_layer.h"

#include <algorithm>
#include <utility>

#include "engine/adjacent_matrices.h"
#include "engine/kernels/rope_append.h"
#include "engine/sparse_steps.h"

namespace tokenbutler {
namespace {

// Rotates the rows' queries and keys by their positions and appends keys and values to the cache.
void RotateAndAppend(const TokenRows& rows, int layer, DenseMath& math) {
  math.ForRows(rows.num_rows(), [&](int begin, int end) {
    RopeAppend({.rows = rows.places() + begin,
                .qkv = rows.activations().qkv + static_cast<size_t>(begin) * rows.qkv_size(),
                .num_rows = end - begin,
                .num_heads = rows.config().num_heads,
                .layout = rows.kv_store().layout(),
                .layer = layer});
  });
}

}  // namespace

absl::StatusOr<AttentionLayer> AttentionLayer::Create(const ModelConfig& config,
                                                      const LayerWeights& weights, int layer) {
  AttentionLayer attention;
  attention.layer_ = layer;
  attention.window_ = config.sliding_window.empty() ? 0 : config.sliding_window[layer];
  ASSIGN_OR_RETURN(attention.qkv_,
                   JoinAdjacent({weights.q_proj, weights.k_proj, weights.v_proj}, "q, k, v"));
  attention.qkv_bias_ = JoinBiases({weights.q_bias, weights.k_bias, weights.v_bias},
                                   {weights.q_proj, weights.k_proj, weights.v_proj});
  attention.o_ = weights.o_proj;
  attention.o_bias_ = weights.o_bias;
  return attention;
}

void AttentionLayer::Run(TokenRows& rows, DenseMath& math) const {
  const Activations& a = rows.activations();
  const float* qkv_bias = qkv_bias_.empty() ? nullptr : qkv_bias_.data();

  PredictAhead(rows, layer_, LayerPoint::kInput, math.pool());
  math.Linear(a.normed, qkv_, qkv_bias, a.qkv, rows.num_rows());
  RotateAndAppend(rows, layer_, math);
  SelectTokens(rows, layer_, window_, math.pool());
  FetchTokens(rows, layer_);
  math.Attend(rows, layer_, window_);
  ObserveAttention(rows, layer_, math.pool());
  math.Linear(a.attended, o_, o_bias_.as<float>(), a.projected, rows.num_rows());
}

}  // namespace tokenbutler
