#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/status.h"
#include "engine/models/model_config.h"
#include "engine/step_runner.h"
#include "offload/kv_store.h"

namespace tokenbutler {

// A model from a file, with its KV store, and sequences that are run by hand: what the scheduler
// does for a server, tests do here step by step.
class LoadedRunner {
 public:
  struct Options {
    DType compute_dtype = DType::kF32;
    std::optional<DType> kv_dtype = std::nullopt;  // of the KV cache; unset: the compute dtype
    int num_threads = 2;
    int block_size = 16;  // small, so that short sequences cross blocks
    int num_blocks = 64;
    StepRunnerOptions runner = {};
    // A device tier with a memory of its own; otherwise the host tier is the device.
    std::optional<KvStore::StagedOptions> staged = std::nullopt;
    // Changes the configuration between loading and creating.
    std::function<void(ModelConfig&)> adjust = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<LoadedRunner>> Load(const std::string& path,
                                                            const Options& options);

  StepRunner& runner() { return *runner_; }
  int vocab_size() const { return runner_->vocab_size(); }
  const KvStore& kv_store() const { return *kv_store_; }

  // A sequence with room for `num_tokens`, and for the state of its attention's policy; blocks are
  // never reused.
  BlockTable NewSequence(int num_tokens, const AttentionParams& attention = {});
  // Null for dense attention.
  std::unique_ptr<SequenceState> NewState(const AttentionParams& attention);

  // Each runs `tokens` at the end of `sequence` and returns their logits [num_tokens, vocab_size].
  // Prefill: in chunks of at most `chunk_tokens`. Decode: one at a time. Failures throw (the test
  // fails with the message).
  std::vector<float> Prefill(BlockTable& sequence, absl::Span<const int32_t> tokens,
                             int chunk_tokens, SequenceState* state = nullptr);
  std::vector<float> Decode(BlockTable& sequence, absl::Span<const int32_t> tokens,
                            SequenceState* state = nullptr);

  // Greedy decoding from the logits [vocab_size] after the sequence's last token.
  std::vector<int32_t> Greedy(BlockTable& sequence, absl::Span<const float> logits, int num_tokens,
                              SequenceState* state = nullptr);

 private:
  explicit LoadedRunner(int num_threads) : pool_(num_threads) {}

  ComputePool pool_;
  std::unique_ptr<KvStore> kv_store_;
  std::unique_ptr<StepRunner> runner_;
  int num_taken_ = 0;
};

// Index of the largest; the first of equals.
int32_t ArgMax(absl::Span<const float> values);

// logits - log(sum(exp(logits))), in double.
std::vector<double> LogSoftmax(absl::Span<const float> logits);

// Largest |a[i] - b[i]|; NaN when the sizes differ or any value is NaN.
double MaxAbsDifference(absl::Span<const float> a, absl::Span<const float> b);

}  // namespace tokenbutler
