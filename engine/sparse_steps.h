#pragma once

#include "base/compute_pool.h"
#include "engine/selection/token_selector.h"
#include "engine/token_rows.h"

namespace tokenbutler {

// What sparse attention adds to a layer, in the order of AttentionLayer::Run. Dense sequences are
// passed over.

// The hidden state of each row is at `point` of `layer`, and its norm in activations().normed:
// predictors choose for later layers, and what is missing of those choices starts to travel; who
// watches a prefill is shown its rows. Called at both points of each layer.
void PredictAhead(TokenRows& rows, int layer, LayerPoint point, ComputePool& pool);

// Each sequence's policy chooses the tokens that its row attends to in `layer`.
void SelectTokens(TokenRows& rows, int layer, int window, ComputePool& pool);

// The chosen tokens become resident in the device tier; waits for this layer's transfers only.
void FetchTokens(TokenRows& rows, int layer);

// Policies learn from what the attention of `layer` has seen.
void ObserveAttention(TokenRows& rows, int layer, ComputePool& pool);

}  // namespace tokenbutler
