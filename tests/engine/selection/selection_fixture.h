#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/compute_pool.h"
#include "engine/models/model_config.h"
#include "engine/models/rope.h"
#include "engine/selection/kv_rows.h"
#include "engine/selection/policies.h"
#include "engine/selection/token_selector.h"
#include "offload/block_table.h"
#include "offload/kv_store.h"

namespace tokenbutler {

struct SelectionShape {
  int num_layers = 2;
  int num_kv_heads = 2;
  int group_size = 3;
  int head_dim = 32;
  int block_size = 32;
  DType dtype = DType::kBF16;
  RopeConfig rope = {};
};

// A sequence without a model: random keys, values and queries, written into a KvStore as a model
// would, layer by layer and never ahead of time (unwritten rows are NaN). Leads a TokenSelector
// through prefill chunks and decode steps in the engine's order. Values depend on the seed, the
// layer and the position only, not on how the tokens were divided into steps.
class FakeSequence {
 public:
  // Room for `max_tokens` tokens and the state that `params` asks for (filled with rubbish).
  FakeSequence(const SelectionShape& shape, const AttentionParams& params, int max_tokens,
               unsigned seed = 1, int num_threads = 2);

  // A new selector for the sequence's parameters; a test failure and null when refused.
  std::unique_ptr<TokenSelector> NewSelector() const;

  // Appends tokens by prefill chunks of at most `chunk` tokens. `selector` may be null here and
  // below: then only rows are written.
  void Prefill(TokenSelector* selector, int num_tokens, int chunk = 1 << 20);

  // Appends a token by a decode step. Returns, per layer, what was selected; num_kv_heads is 0
  // where the engine would have attended to all tokens without asking.
  std::vector<TokenSelection> Decode(TokenSelector* selector);

  // The same tokens in blocks of its own; tokens appended from now on come from another seed.
  std::unique_ptr<FakeSequence> Fork(unsigned seed) const;

  int length() const { return table_.num_tokens; }
  int num_heads() const { return shape_.num_kv_heads * shape_.group_size; }
  const SelectionShape& shape() const { return shape_; }
  const AttentionParams& params() const { return params_; }
  const SelectionResources& resources() const { return resources_; }
  const KvStore& store() const { return *store_; }
  const BlockTable& table() const { return table_; }
  float softmax_scale() const;

  // As cached, as float32. [head_dim]
  std::vector<float> Key(int layer, int kv_head, int token) const;
  std::vector<float> Value(int layer, int kv_head, int token) const;
  // After RoPE. [num_heads, head_dim]
  const float* Query(int layer, int position) const;
  // softmax_scale * query head . key of the KV head that serves it.
  double Logit(int layer, int head, int position, int token) const;

  // What a selector is shown while `layer` runs with `context_len` tokens.
  LayerContext Context(int layer, int context_len);

 private:
  KvRow Row(int layer, int kv_head, int token) const;
  // Writes K and V rows of one layer's tokens [begin, end).
  void WriteRows(int layer, int begin, int end);
  // Softmax over what was selected, as the attention kernel hands it to OnAttended.
  void Attend(const LayerContext& context, const TokenSelection& selection,
              TokenSelector* selector);

  const SelectionShape shape_;
  const AttentionParams params_;
  const int max_tokens_;
  const int num_threads_;
  std::vector<unsigned> seeds_;  // [max_tokens] of each token
  ModelConfig config_;
  std::unique_ptr<Rope> rope_;
  SelectionResources resources_;
  StateLayout state_layout_;
  std::unique_ptr<KvStore> store_;
  BlockTable table_;
  std::vector<std::byte*> blocks_, state_blocks_;
  std::vector<std::vector<float>> queries_;  // [num_layers][max_tokens * num_heads * head_dim]
  std::vector<std::vector<float>> lse_;      // [num_layers][num_heads], empty before the first step
  std::unique_ptr<ComputePool> pool_;
};

// Lists ascending, none twice, within [0, context_len), at most `budget` of them, and the newest
// token among them.
void ExpectWellFormed(const TokenSelection& selection, int num_kv_heads, int context_len,
                      int budget);

// The tokens of every layer and KV head, for comparing runs: empty where nothing was selected.
std::vector<std::vector<int>> TokensOf(const std::vector<TokenSelection>& step);

}  // namespace tokenbutler
