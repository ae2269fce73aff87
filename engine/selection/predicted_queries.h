#pragma once

#include <memory>

#include "engine/predictor/predictor.h"
#include "engine/selection/policy_spec.h"
#include "engine/selection/scanning_selector.h"

namespace tokenbutler {

// The consumer layer's own query, taken early: the residual stream changes slowly, so
//   q[l] = RoPE(W_q[l] norm[l](h_p) + b_q[l])
// with the hidden state h_p at `point` of the producer layer, rounded as the layer itself will
// round. Layers 0, n, 2 n ... produce for the next n = `layers_ahead` layers. Gives [num_heads,
// head_dim]. One layer ahead and after the attention, only an MLP lies between h_p and the query,
// and most of a layer's weights are still to be read until it is needed.
std::unique_ptr<QueryPredictor> NewLookaheadQuery(const SelectionResources& resources,
                                                  int layers_ahead, LayerPoint point);

// The same as a predictor of kind kLookahead has learned it: its layers ahead and its point, and
// with its low-rank correction
//   q[l] = RoPE(W_q[l] norm[l](h_p) + b_q[l] + up[l] (down[l] norm[l](h_p)))
// whose input is not rounded. `predictor` must outlive it.
std::unique_ptr<QueryPredictor> NewLookaheadQuery(const SelectionResources& resources,
                                                  const Predictor& predictor);

// The published predictor: a small MLP per producer layer (PredictorProducer). Gives [num_heads,
// projected_dim]. `predictor` of kind kTokenButler must outlive it.
std::unique_ptr<QueryPredictor> NewProducerQuery(const SelectionResources& resources,
                                                 const Predictor& predictor);

}  // namespace tokenbutler
