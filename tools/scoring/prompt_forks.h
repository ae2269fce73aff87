#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {

inline SamplingParams GreedySampling() {
  SamplingParams greedy;
  greedy.temperature = 0;
  return greedy;
}

// What follows a held prompt under one attention: a question, and then either tokens that are fed
// to be scored, whatever the model thinks of them, or tokens that it generates.
struct Continuation {
  AttentionParams attention;
  // May be empty when tokens are scored.
  std::vector<int32_t> question = {};
  // Run one by one, each attending to what `attention` chooses, as generated tokens are; or
  // densely, as a part of the prompt.
  bool question_is_decoded = true;
  std::vector<int32_t> scored = {};  // may be empty behind a decoded question
  int max_tokens = 0;                // generated; 0: none, tokens are scored
  SamplingParams sampling = GreedySampling();
  StopParams stop = {};
  ProbeParams probe = {};  // positions count from the held prompt's first token
};

struct Completion {
  std::string text;
  std::vector<int32_t> token_ids;
  FinishReason reason = FinishReason::kLength;
};

// What became of a continuation.
struct ContinuationResult {
  AttentionStats attention;             // of the last completion; zeros when it was dense
  AttentionProbes probes;               // the same
  std::vector<Completion> completions;  // [sampling.n] when tokens were generated
};

// The serving engine over a model, asked what every policy makes of the same prompt: one dense
// prefill is held, and each continuation is a copy-on-write fork of it.
class PromptForks {
 public:
  struct Options {
    int context_len = 0;   // most tokens of a prompt and of what follows it
    int max_num_seqs = 1;  // run together; others wait for their turn
    int prefill_chunk_tokens = 512;
  };
  // `model` has a tokenizer, outlives this, and is used by nobody else meanwhile.
  static absl::StatusOr<std::unique_ptr<PromptForks>> Create(MeasuredModel& model,
                                                             const Options& options);

  // Holds a prompt in the place of the one before. `rows`: its K and V rows; null: it is prefilled,
  // with the policies of `attentions` watching, and `progress` is told how many tokens are done.
  absl::Status Hold(absl::Span<const int32_t> prompt, std::vector<AttentionParams> attentions,
                    std::shared_ptr<const PromptRows> rows,
                    const std::function<void(int)>& progress);
  // The held prompt's blocks.
  absl::StatusOr<BlockTable> Blocks() const { return engine_->HeldBlocks(kName); }

  // Runs the continuations, as many together as Options says; their results in the same order.
  // Calls on_logits(c, i, logits) with what continuation `c` predicts after scored[i], `i`
  // ascending from -1, which is after the question (or the held prompt's last token, whose logits
  // are not there when no question is run densely); on another thread, one call at a time. The
  // first error of any of them.
  using OnLogits = std::function<void(int continuation, int token, absl::Span<const float> logits)>;
  absl::StatusOr<std::vector<ContinuationResult>> Run(absl::Span<const Continuation> continuations,
                                                      const OnLogits& on_logits = nullptr);

 private:
  static constexpr const char* kName = "prompt";

  PromptForks() : metrics_(BuildLabels{}) {}
  GenerationRequest RequestOf(const Continuation& continuation, size_t index) const;

  RealClock clock_;
  Metrics metrics_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<Engine> engine_;  // last: its thread uses the others
};

}  // namespace tokenbutler
