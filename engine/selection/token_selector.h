#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "engine/kernels/kv_row.h"
#include "engine/predictor/layer_point.h"
#include "offload/kv_layout.h"
#include "offload/state_layout.h"
#include "offload/token_selection.h"

namespace tokenbutler {

// What a policy sees of its sequence when a layer is at work. Rows of all tokens before context_len
// are written; a decode step's own token is the last.
struct LayerContext {
  const KvLayout* layout = nullptr;
  absl::Span<std::byte* const> blocks;        // the sequence's KV blocks, in token order
  const StateLayout* state_layout = nullptr;  // as the policy asked for
  absl::Span<std::byte* const> state_blocks;  // the sequence's own, in order
  int layer = 0;
  int context_len = 0;
  int group_size = 1;  // query heads per KV head
  float softmax_scale = 1;
  // [num_heads] log-sum-exp of the layer's logits at the previous decode step, over what it
  // attended to; null at the first one. Makes the logits of a group's heads comparable.
  const float* lse = nullptr;
  // The same of every layer: [num_layers, num_heads], and which of them there are, [num_layers].
  absl::Span<const float> all_lse = {};
  absl::Span<const uint8_t> has_lse = {};
  ComputePool* pool = nullptr;

  // The key rows [block_size, head_dim] of one block of this layer, from row `first` on.
  KvRows keys(int kv_head, int block, int first = 0) const {
    return KeyRowsOf(*layout, blocks[block], layer, kv_head, first);
  }
  // What `lse` is when another layer is at work.
  const float* lse_of(int other_layer) const {
    if (has_lse.empty() || has_lse[other_layer] == 0) return nullptr;
    return all_lse.data() + all_lse.size() / has_lse.size() * other_layer;
  }
  // The policy's record of one KV block.
  std::byte* record(int kv_head, int block) const {
    return state_blocks[block / state_layout->kv_blocks()] +
           state_layout->offset(layer, kv_head, block);
  }
};

// A chunk's queries after RoPE: row i is that of token context_len - num_rows + i.
struct PrefillQueries {
  const float* queries =
      nullptr;  // [num_rows] rows of [num_heads, head_dim], `stride` floats apart
  size_t stride = 0;
  int num_rows = 0;
};

// A chunk's hidden states at a point of a layer, before the norm that comes next: row i is that of
// token context_len - num_rows + i.
struct PrefillHidden {
  const float* residual = nullptr;  // [num_rows, hidden_size]
  int num_rows = 0;
};

// One policy at work on one sequence: chooses, per layer and KV head, which cached tokens a decode
// step attends to. Keeps per sequence what changes with every step; what is derived from full
// blocks of keys lives in the state blocks. Calls come in the order of the layers, on the engine
// thread, with the context growing from call to call; parallel work goes to context.pool. Results
// must not depend on the number of threads, nor on other sequences.
class TokenSelector {
 public:
  virtual ~TokenSelector() = default;

  // A copy for a fork, which goes on by itself. Its state blocks hold the same bytes.
  virtual std::unique_ptr<TokenSelector> Clone() const = 0;

  // Takes the memory that decode steps of up to `max_tokens` tokens work in, so that they need not
  // (but for what a policy makes once per prompt). Called at admission, and again on clones.
  virtual void Reserve(const KvLayout& layout, int group_size, int max_tokens) {
    (void)layout, (void)group_size, (void)max_tokens;
  }

  // Whether decode steps attend to all tokens in this layer, as the policy's publication has it;
  // Select is not called there.
  virtual bool IsDenseLayer(int layer) const {
    (void)layer;
    return false;
  }

  // A prefill chunk has been run through the attention of a layer.
  virtual void OnPrefill(const LayerContext& context, const PrefillQueries& queries) {
    (void)context, (void)queries;
  }

  // A prefill chunk is at this point of a layer with these hidden states. For those who learn what
  // a decode step would have seen there.
  virtual void OnPrefillHidden(const LayerContext& context, LayerPoint point,
                               const PrefillHidden& hidden) {
    (void)context, (void)point, (void)hidden;
  }

  // A decode step is at this point of a layer with this hidden state: what a producer sees.
  // `residual` [hidden_size] before the norm that comes next (input or post-attention), `normed`
  // the same after it, rounded to the compute dtype (bf16 or float32).
  virtual void OnHidden(const LayerContext& context, LayerPoint point, const float* residual,
                        const void* normed) {
    (void)context, (void)point, (void)residual, (void)normed;
  }
  // The selection, made early, that `layer`'s fetch may start with; null: none.
  virtual const TokenSelection* Early(int layer) const {
    (void)layer;
    return nullptr;
  }

  // Chooses for the layer. `query` [num_heads, head_dim] after RoPE. The result keeps within the
  // token budget, and holds the newest token; most policies' also the sink tokens and the local
  // window.
  // REQUIRES: context_len > the token budget, unless WantsWeights().
  virtual void Select(const LayerContext& context, const float* query,
                      TokenSelection* selection) = 0;

  // The tokens from which the last Select made its choice, and later ones will, when they have just
  // become others: worth having in the device tier altogether. Null: no, or no candidates.
  virtual const TokenSelection* NewCandidates(int layer) const {
    (void)layer;
    return nullptr;
  }

  // Tokens that it has scored in decode steps so far, by what it keeps of them or by their keys,
  // summed over layers and KV heads: how much of the context it looked at. Scores of candidates
  // that are ranked anew do not count.
  virtual int64_t num_scored() const { return 0; }

  // For policies that attend to all tokens, by keys and values of their own making: where these are
  // for the layer, as bases of all blocks of the context with its layout. They are attended to
  // instead, and Select is not called. Valid until the next call; empty: none.
  virtual absl::Span<std::byte* const> StandIn(const LayerContext& context) {
    (void)context;
    return {};
  }

  // Whether OnAttended wants the softmax weights; then Select is called at every decode step, also
  // when the budget holds all tokens.
  virtual bool WantsWeights() const { return false; }
  // `weights`: [num_heads] arrays, each as long as the selection of its KV head.
  virtual void OnAttended(const LayerContext& context, const TokenSelection& selection,
                          const float* const* weights) {
    (void)context, (void)selection, (void)weights;
  }

  // Positions by which the query is moved back for the first tokens of every list, those before
  // params.sink_tokens: policies that count positions inside the cache (streaming_llm). 0: none.
  virtual int SinkShift(const LayerContext& context) const {
    (void)context;
    return 0;
  }
};

}  // namespace tokenbutler
