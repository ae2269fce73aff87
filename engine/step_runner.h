#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/compute_pool.h"
#include "engine/decode_math.h"
#include "engine/models/model_config.h"
#include "engine/models/rope.h"
#include "engine/prefill_math.h"
#include "engine/selection/policies.h"
#include "engine/step_plan.h"
#include "engine/token_rows.h"
#include "engine/transformer.h"
#include "engine/weights/model_weights.h"
#include "offload/kv_store.h"

namespace tokenbutler {

struct StepRunnerOptions {
  // Rows for which memory is taken at Create: decode items of a step and tokens of a prefill chunk,
  // as EngineConfig has them. Larger steps work; their first one allocates.
  int max_num_seqs = 64;
  int prefill_chunk_tokens = 512;
  // Layers whose selection is compared with the attention over all tokens in each decode step of a
  // sparse sequence, on average (AttentionStats::recall_sum, AttentionProbes): below 1 some steps
  // compare none, from num_layers on all layers are. Costs a dense layer each. At least 0
  double recall_probe_rate = 0;
  // For the policy tokenbutler; null: none, and why, for those who ask for it. Whether it knows the
  // model's files is the caller's to check (CheckPredictorFits).
  std::shared_ptr<const Predictor> predictor = nullptr;
  std::string no_predictor = "";
  // For the policy pca, of kind kPca; null: each sequence finds its own directions.
  std::shared_ptr<const Predictor> pca = nullptr;
  int lookahead_layers = 1;  // see SelectionResources

  absl::Status Validate() const;
};

// The layout of KV blocks that a model needs, with rows of any dtype.
KvLayout KvLayoutFor(const ModelConfig& config, DType kv_dtype);

// Runs steps by computing them: the decode items together through our kernels, then each prefill
// chunk through LibTorch. Owns the model and all workspaces. One thread (the engine's) calls Run
// and reads the logits.
class StepRunner : public ModelRunner {
 public:
  // `kv_store` and `pool` are not owned and must outlive the runner.
  // INVALID_ARGUMENT naming the field when configuration, weights and KV layout do not fit
  // together; FAILED_PRECONDITION for a predictor of another architecture; RESOURCE_EXHAUSTED when
  // there is no memory for the workspaces.
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(ModelConfig config,
                                                            ModelWeights weights, KvStore* kv_store,
                                                            ComputePool* pool,
                                                            const StepRunnerOptions& options = {});

  const ModelConfig& config() const { return config_; }
  // What policies build on: the model as this runner computes it.
  const SelectionResources& resources() const { return resources_; }
  DType compute_dtype() const { return transformer_->compute_dtype(); }

  int vocab_size() const override { return config_.vocab_size; }
  // INVALID_ARGUMENT naming an item's token id, position or blocks that are out of bounds, before
  // anything is computed; RESOURCE_EXHAUSTED when memory is short (all logits of a chunk take
  // 4 * tokens * vocab_size bytes); INTERNAL with LibTorch's words when it fails.
  absl::Status Run(const StepPlan& plan) override;
  absl::Span<const float> decode_logits(int item) const override;
  absl::Span<const float> prefill_logits(int chunk) const override;
  void CopyBlock(BlockId from, BlockId to) override { kv_store_.CopyBlock(from, to); }
  void WriteBlock(absl::Span<const std::byte> bytes, BlockId to) override {
    kv_store_.WriteBlock(bytes, to);
  }
  absl::Status CheckAttention(const AttentionParams& params) const override;
  StateLayout state_layout(const AttentionParams& params) const override;
  absl::StatusOr<std::unique_ptr<SequenceState>> NewState(const AttentionParams& params,
                                                          int max_tokens, int num_forks) override;
  absl::StatusOr<std::unique_ptr<SequenceState>> ForkState(const SequenceState& state) override;
  absl::StatusOr<std::unique_ptr<SequenceState>> NewIdleState(
      const AttentionParams& params) override;
  bool learns_from_prefill(const AttentionParams& params) const override;
  PolicyMemory policy_memory(const AttentionParams& params, int num_tokens) const override;
  absl::StatusOr<std::unique_ptr<SequenceState>> NewObserver(
      const AttentionParams& params) override;
  // An observer (StepItem::observers) of the caller's own making: shows `selector` what prefill
  // chunks do, and never asks it to choose. Needs no state blocks.
  std::unique_ptr<SequenceState> NewObserver(std::unique_ptr<TokenSelector> selector) const;
  absl::StatusOr<std::unique_ptr<SequenceState>> ContinueState(const SequenceState& observer,
                                                               int max_tokens,
                                                               int num_forks) override;
  absl::Status AdoptRows(const BlockTable& table, SequenceState* state) override {
    return AdoptRows(table, /*queries=*/{}, state);
  }
  int64_t device_kv_used_bytes() const override { return kv_store_.device_used_bytes(); }

  // Makes a new state that of a sequence whose first table.num_tokens tokens are written although
  // no step ran them: rows shared with another sequence, or filled in by a benchmark. Builds what
  // the policy derives from keys. `queries` [num_layers] are those of the last tokens as a prefill
  // chunk would have them (token_selector.h); without them, policies that choose by the prompt's
  // queries (snapkv, h2o) have seen none. REQUIRES: `state` is new, and of this runner.
  // INVALID_ARGUMENT when the table has too few blocks or the number of queries is neither 0 nor
  // num_layers; RESOURCE_EXHAUSTED when memory is short.
  absl::Status AdoptRows(const BlockTable& table, absl::Span<const PrefillQueries> queries,
                         SequenceState* state);

 private:
  StepRunner(ModelConfig config, ModelWeights weights, KvStore& kv_store, ComputePool& pool);

  absl::Status CheckItem(const StepItem& item) const;
  absl::Status RunDecode(absl::Span<const StepItem> items);
  absl::Status RunPrefill(const StepItem& chunk, float* logits);

  // Where each item's logits are in a buffer: from offsets[i] to offsets[i + 1], in rows.
  struct LogitRows {
    std::vector<size_t> offsets = {0};
    Buffer buffer;
    absl::Status Lay(absl::Span<const StepItem> items, int vocab_size);
    absl::Span<const float> Of(int item, int vocab_size) const;
  };

  const ModelConfig config_;
  const ModelWeights weights_;
  KvStore& kv_store_;
  ComputePool& pool_;
  std::unique_ptr<Rope> rope_;
  std::shared_ptr<const Predictor> predictor_, pca_;
  SelectionResources resources_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<TokenRows> rows_;  // decode steps and prefill chunks take turns
  DecodeMath decode_math_;
  std::unique_ptr<PrefillMath> prefill_math_;
  LogitRows decode_logits_, prefill_logits_;
};

}  // namespace tokenbutler
