#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/attention_probes.h"
#include "engine/attention_stats.h"
#include "engine/selection/policy_spec.h"
#include "engine/selection/token_selector.h"
#include "offload/token_selection.h"

namespace tokenbutler {

// Now and then compares what a layer of one sparse sequence attends to with all of its tokens, at
// the price of a dense layer each time. Layers take turns; one that attends to everything lets its
// turn pass. Engine thread only.
class SelectionProbe {
 public:
  // `resources` must outlive this; its recall_probe_rate says how often.
  SelectionProbe(const AttentionParams& params, const SelectionResources& resources);

  // Takes the memory that probes of up to `max_tokens` tokens work in, so that they need not.
  void Reserve(int max_tokens);
  // What is wanted beyond AttentionStats; before the first step.
  void Want(const ProbeParams& wanted);
  const ProbeParams& wanted() const { return wanted_; }

  // The next decode step runs the token at `position`.
  void BeginStep(int position);
  bool is_due(int layer) const {
    return (layer - first_layer_ + num_layers_) % num_layers_ < num_due_;
  }

  // REQUIRES, of both: is_due(context.layer), and the layer attends to chosen tokens.
  // Before the layer's attention, with the context that the policy chose in.
  void BeforeAttention(const LayerContext& context);
  // After it. `query` [num_heads, head_dim]; `attended_lse` [num_heads]: log-sum-exp of the logits
  // of `selection`.
  void AfterAttention(const LayerContext& context, const float* query, const float* attended_lse,
                      const TokenSelection& selection, AttentionStats* stats);

  const AttentionProbes& found() const { return found_; }

 private:
  // Scores all tokens for one KV head as `exact` does, and their log-sum-exp for its query heads.
  void ScoreAll(const LayerContext& context, const float* query, int kv_head);
  void AddOverlap(int context_len, absl::Span<const int32_t> attended, HeadProbes* head);
  // `query`: the KV head's.
  void AddWatched(const LayerContext& context, const float* query, int kv_head,
                  absl::Span<const int32_t> attended, HeadProbes* head);

  const AttentionParams params_;
  const SelectionResources& resources_;
  const int num_layers_;
  ProbeParams wanted_;
  double probes_due_ = 0;
  int first_layer_ = 0, num_due_ = 0;  // in the running step, from first_layer_ on
  std::vector<float> chosen_lse_;      // [num_heads] that the policy chose by; empty: none
  std::vector<float> scores_;          // [context_len] of one KV head
  std::vector<float> lse_, workspace_;
  std::vector<int32_t> best_;          // what exact chooses
  std::vector<float> watched_logits_;  // [watched]
  std::vector<uint8_t> is_attended_;   // [watched], by the KV head at work
  std::vector<uint8_t> by_any_;        // [watched], by some KV head of the layer
  AttentionProbes found_;
};

}  // namespace tokenbutler
