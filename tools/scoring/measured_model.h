#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/status.h"
#include "engine/request.h"
#include "engine/selection/policy_spec.h"
#include "engine/selection/token_selector.h"
#include "engine/step_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "offload/block_pool.h"
#include "offload/kv_store.h"

namespace tokenbutler {

// Memory that a KV cache may take without pushing others out: what the machine has available,
// within the control group's limit, less some for the rest of the program.
int64_t AvailableKvBytes();

// What one decode step has to read of the weights: every matrix of every layer and the head. One
// row of the embedding does not count.
size_t WeightBytesPerStep(const ModelWeights& weights);

// A model with its KV cache and tokenizer, on which measurements run sequences by hand or through
// an engine.
class MeasuredModel {
 public:
  struct Options {
    std::string model;          // a .gguf file or a Hugging Face folder
    std::string dtype;          // "bfloat16", "float32", or empty: what the server would choose
    std::string kv_dtype = {};  // of the KV cache, a DTypeName; "": the compute dtype
    int block_size = 128;       // tokens of a KV block, KvLayout::block_size
    int context_len = 0;        // positions used: beyond the model's own, RoPE is scaled by YaRN
    // Blocks of the KV cache, given what policies build on; the runner's RoPE is not there yet.
    std::function<int(const SelectionResources&)> num_blocks;
    bool needs_tokenizer = false;
    // A device tier with a memory of its own, of this size given the KV cache's layout.
    std::function<int64_t(const KvLayout&)> device_bytes = nullptr;
    int selections_kept = 1;  // by each sequence there
    // File for the policy tokenbutler, of this architecture; "": none; "auto": the one that is
    // found for the model (DefaultPredictorFolder), if there is one.
    std::string predictor = {};
    StepRunnerOptions runner = {};
  };

  // RESOURCE_EXHAUSTED naming bytes needed and available when the cache does not fit into memory.
  // `pool` must outlive the model.
  static absl::StatusOr<std::unique_ptr<MeasuredModel>> Create(const Options& options,
                                                               ComputePool& pool);

  StepRunner& runner() { return *runner_; }
  const StepRunner& runner() const { return *runner_; }
  KvStore& store() { return *kv_store_; }
  BlockPool& blocks() { return *block_pool_; }
  ComputePool& pool() { return pool_; }
  // REQUIRES: Options::needs_tokenizer.
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return runner_->config(); }
  const KvLayout& layout() const { return kv_store_->layout(); }
  // Whether sequences have a device tier with a memory of its own.
  bool has_device_tier() const { return kv_store_->device_capacity_bytes() > 0; }
  // Of weights and KV cache: "bfloat16", or "bfloat16, KV int8" where they differ.
  std::string dtypes() const;
  size_t weight_bytes() const { return weight_bytes_; }
  // Of the policy tokenbutler; "": none.
  const std::string& predictor_path() const { return predictor_path_; }
  // "none", or how RoPE was scaled for the context: "yarn x 32".
  const std::string& rope_scaling() const { return rope_scaling_; }

  // The text's tokens, special tokens as the model wants them before a text.
  std::vector<int32_t> Encode(std::string_view text) const;

 private:
  explicit MeasuredModel(ComputePool& pool) : pool_(pool) {}
  // Reads or finds what Options::predictor says.
  absl::Status LoadPredictor(const Options& options, const ModelConfig& config,
                             StepRunnerOptions* runner);

  ComputePool& pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvStore> kv_store_;
  std::unique_ptr<BlockPool> block_pool_;
  std::unique_ptr<StepRunner> runner_;
  size_t weight_bytes_ = 0;
  std::string rope_scaling_ = "none";
  std::string predictor_path_;
};

// One sequence: its blocks, given back at the end, and what its attention keeps.
class MeasuredSequence {
 public:
  // Room for `num_tokens`. RESOURCE_EXHAUSTED when there are too few free blocks; INVALID_ARGUMENT
  // or UNIMPLEMENTED when the model cannot be run with `params`.
  static absl::StatusOr<std::unique_ptr<MeasuredSequence>> Create(MeasuredModel& model,
                                                                  const AttentionParams& params,
                                                                  int num_tokens);
  // A sequence whose first `prefix_tokens` are those of `trunk`: full blocks are shared, the last
  // one is copied. Its policy is shown the rows and `queries` (StepRunner::AdoptRows).
  static absl::StatusOr<std::unique_ptr<MeasuredSequence>> Branch(
      MeasuredModel& model, const AttentionParams& params, const MeasuredSequence& trunk,
      int prefix_tokens, int num_tokens, absl::Span<const PrefillQueries> queries = {});
  ~MeasuredSequence();

  // Runs `tokens` behind what is there, in chunks; `progress` is told how many are done.
  absl::Status Prefill(absl::Span<const int32_t> tokens, int chunk_tokens,
                       const std::function<void(int)>& progress = nullptr);
  // Copies the rows of its first tokens in. REQUIRES: the sequence is empty, dense, and has room.
  void CopyIn(const PromptRows& rows);
  // The item that decodes `token`; the caller counts it in when its step has run.
  StepItem DecodeItem(const int32_t* token) const;
  // One decode step of this sequence alone.
  absl::Status Decode(int32_t token);

  BlockTable& table() { return table_; }
  const BlockTable& table() const { return table_; }
  bool is_dense() const { return state_ == nullptr; }
  AttentionStats stats() const { return state_ == nullptr ? AttentionStats() : state_->stats(); }
  // SequenceState::transfers of the last step.
  absl::Span<const LayerTransfer> transfers() const {
    return state_ == nullptr ? absl::Span<const LayerTransfer>() : state_->transfers();
  }

 private:
  explicit MeasuredSequence(MeasuredModel& model) : model_(model) {}
  absl::Status Allocate(const AttentionParams& params, int num_tokens);

  MeasuredModel& model_;
  BlockTable table_;
  std::unique_ptr<SequenceState> state_;
};

}  // namespace tokenbutler
