#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/status.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/policies.h"
#include "engine/selection/token_selector.h"
#include "engine/selection_probe.h"
#include "engine/step_plan.h"
#include "offload/kv_store.h"

namespace tokenbutler {

// The attention of one sparse sequence: its policy at work, its tokens in the device tier, and what
// the layer that is running has chosen. A decode step goes through a layer as
//   PredictAhead, Select, Fetch, (attention), Observe, PredictAhead, (MLP).
class SequenceAttention : public SequenceState {
 public:
  // `resources` and `store` must outlive the result. Takes the memory that steps of up to
  // `max_tokens` tokens work in (std::bad_alloc). RESOURCE_EXHAUSTED when the device tier has no
  // room for the sequence and `num_forks` forks of it.
  static absl::StatusOr<std::unique_ptr<SequenceAttention>> Create(
      const AttentionParams& params, const SelectionResources& resources, const KvStore& store,
      std::unique_ptr<TokenSelector> selector, int max_tokens, int num_forks = 0);

  // The same without a device tier of its own: for what attends to everything, or only observes.
  static std::unique_ptr<SequenceAttention> CreateOnHost(const AttentionParams& params,
                                                         const SelectionResources& resources,
                                                         const KvStore& store,
                                                         std::unique_ptr<TokenSelector> selector);

  // What goes on from the prefill that this one has observed. Memory and RESOURCE_EXHAUSTED as
  // Create.
  absl::StatusOr<std::unique_ptr<SequenceAttention>> Continue(int max_tokens, int num_forks) const;

  // A copy for a fork, which may happen after a prefill only. The fork's block table holds the same
  // bytes. RESOURCE_EXHAUSTED as Create.
  absl::StatusOr<std::unique_ptr<SequenceAttention>> Fork() const;

  // The next step runs the tokens before `context_len`; says where its blocks are.
  void BeginStep(const BlockTable& table, int context_len, bool is_decode,
                 std::vector<std::byte*>* blocks, std::vector<std::byte*>* state_blocks);
  // Every layer has run.
  void EndStep();

  // Shows the policy rows that no step of this sequence wrote, all layers of all tokens that
  // `table` holds. `queries`: those of the last tokens, one entry per layer; or empty.
  void AdoptRows(const BlockTable& table, absl::Span<const PrefillQueries> queries,
                 ComputePool* pool);

  // Starts what can be known of later layers from the hidden state at this point of a layer, which
  // is as in TokenSelector::OnHidden.
  void PredictAhead(LayerContext context, LayerPoint point, const float* residual,
                    const void* normed);
  // Decides whether the layer attends to chosen tokens, and chooses them. `query` [num_heads,
  // head_dim]. `window`: the layer's sliding window, 0: none; such layers attend to their window.
  void Select(LayerContext context, const float* query, int window);
  // Makes the chosen tokens resident. REQUIRES: is_sparse().
  void Fetch(int layer);
  // After the attention of a decode step. `query` as in Select.
  void ObserveDecode(LayerContext context, const float* query);
  // A prefill chunk is at this point of a layer.
  void ObserveHidden(LayerContext context, LayerPoint point, const PrefillHidden& hidden);
  // After the attention of a prefill chunk.
  void ObservePrefill(LayerContext context, const PrefillQueries& queries);

  const AttentionParams& params() const { return params_; }
  // Of the layer that is running, from Select on.
  bool is_sparse() const { return is_sparse_; }
  // Block bases to attend to all tokens in, when not is_sparse(): `own` unless the policy has made
  // keys and values that stand in for the sequence's own.
  std::byte* const* all_tokens(const std::vector<std::byte*>& own) const {
    return stand_in_.empty() ? own.data() : stand_in_.data();
  }
  const TokenSelection& selection() const { return selection_; }
  const ResidentView& view() const { return view_; }
  // Where the attention kernel writes: [num_heads] of the layer.
  float* lse(int layer) { return lse_.data() + static_cast<size_t>(layer) * num_heads_; }
  // [num_heads] rows for the softmax weights; null when nobody wants them.
  float* const* weights() const { return weight_rows_.empty() ? nullptr : weight_rows_.data(); }
  // [num_heads, head_dim]: the query for the sink tokens; null: the layer's own.
  const float* sink_query() const { return sink_shift_ == 0 ? nullptr : sink_query_.data(); }
  int num_sink_rows() const { return params_.sink_tokens; }
  const StateLayout& state_layout() const { return state_layout_; }

  AttentionStats stats() const override;
  void Probe(const ProbeParams& wanted) override { probe_.Want(wanted); }
  const AttentionProbes& probes() const override { return probe_.found(); }
  absl::Span<const LayerTransfer> transfers() const override { return transfers_; }

 private:
  SequenceAttention(const AttentionParams& params, const SelectionResources& resources,
                    const KvStore& store, std::unique_ptr<TokenSelector> selector,
                    std::unique_ptr<ResidentTokens> resident, int max_tokens);

  // Takes the memory that decode steps work in.
  void Reserve();
  // What the policy is shown: the last step's log-sum-exp included.
  void AddLse(LayerContext* context) const;
  void RotateSinkQuery(const float* query);
  // Notes what has been sent since `bytes_before` had been counted.
  void Note(int layer, int during, LayerTransfer::Sent sent, int64_t bytes_before);

  const AttentionParams params_;
  const SelectionResources& resources_;
  const KvStore& store_;
  const StateLayout state_layout_;
  const int num_heads_;
  const int max_tokens_;  // 0: chooses nothing
  std::unique_ptr<TokenSelector> selector_;
  std::unique_ptr<ResidentTokens> resident_;
  bool is_sparse_ = false;
  absl::Span<std::byte* const> stand_in_;
  TokenSelection selection_;
  ResidentView view_;
  std::vector<float> lse_;                // [num_layers, num_heads]
  std::vector<uint8_t> has_lse_;          // [num_layers]
  std::vector<uint8_t> prefetched_;       // [num_layers] 1: the early choice for it is on its way
  std::vector<LayerTransfer> transfers_;  // of the last decode step
  std::vector<float> weights_;
  std::vector<float*> weight_rows_;
  int sink_shift_ = 0;
  std::vector<float> sink_query_, rotation_;
  SelectionProbe probe_;
  const int64_t scored_before_;  // of the selector, by what it was copied from
  AttentionStats stats_;
};

}  // namespace tokenbutler
