#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/models/model_config.h"
#include "engine/models/rope.h"
#include "engine/predictor/predictor.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/policy_memory.h"
#include "engine/selection/token_selector.h"
#include "engine/weights/model_weights.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// What policies may build on; not owned, outlives every selector.
struct SelectionResources {
  const ModelConfig* config = nullptr;
  const ModelWeights* weights = nullptr;
  const Rope* rope = nullptr;
  KvLayout layout;
  // Layers compared with the attention over all tokens in each decode step, on average
  // (StepRunnerOptions::recall_probe_rate).
  double recall_probe_rate = 0;
  // The model's predictor; null: none, and why.
  const Predictor* predictor = nullptr;
  std::string no_predictor = "";
  // Principal directions from a file; null: each sequence's own.
  const Predictor* pca = nullptr;
  // Layers between a training-free lookahead query and the layer it is for, at most. [1, 16]
  int lookahead_layers = 1;
};

// One selection policy, as the table in policies.cc lists it. Each policy's file defines one.
struct PolicySpec {
  AttentionPolicy policy = AttentionPolicy::kDense;
  // Keys join what is scored a block at a time, and are attended in any case until then.
  bool scores_whole_blocks = false;
  // Bytes kept per KV block, layer and KV head; null: none.
  size_t (*record_bytes)(const AttentionParams&, const SelectionResources&) = nullptr;
  // Chooses by the prompt's queries, which rows alone do not tell.
  bool learns_from_prefill = false;
  // The most that is kept elsewhere for a sequence of that many tokens in the end; null: nothing
  // that grows with the tokens.
  PolicyMemory (*memory)(const AttentionParams&, const SelectionResources&,
                         int num_tokens) = nullptr;
  // The smallest token_budget that `check` takes with the other parameters; null: any that is
  // valid.
  int (*least_budget)(const AttentionParams&) = nullptr;
  // What the policy asks of parameters and model beyond the general bounds: INVALID_ARGUMENT
  // naming the field; null: nothing.
  absl::Status (*check)(const AttentionParams&, const SelectionResources&) = nullptr;
  // REQUIRES: check is OK.
  absl::StatusOr<std::unique_ptr<TokenSelector>> (*create)(const AttentionParams&,
                                                           const SelectionResources&) = nullptr;
};

}  // namespace tokenbutler
