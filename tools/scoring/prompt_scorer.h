#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {

// The serving engine over a model, asked what every policy makes of the same text: one
// dense prefill is held, and each policy scores what follows from a copy-on-write fork of it.
class PromptScorer {
 public:
  struct Options {
    int context_len = 0;   // of a prompt and the tokens scored behind it
    int max_num_seqs = 1;  // scored together
    int prefill_chunk_tokens = 512;
  };
  // `model` has a tokenizer, outlives this, and is used by nobody else meanwhile.
  static absl::StatusOr<std::unique_ptr<PromptScorer>> Create(MeasuredModel& model,
                                                              const Options& options);

  // Holds a prompt in the place of the one before. `rows`: its K and V rows; null: it is prefilled,
  // with the policies of `attentions` watching, and `progress` is told how many tokens are done.
  absl::Status Hold(absl::Span<const int32_t> prompt, std::vector<AttentionParams> attentions,
                    std::shared_ptr<const PromptRows> rows,
                    const std::function<void(int)>& progress);
  // The held prompt's blocks.
  absl::StatusOr<BlockTable> Blocks() const { return engine_->HeldBlocks(kName); }

  // Feeds `tokens` one by one behind the held prompt, to each of `attentions` for itself. Calls
  // on_logits(a, i, logits) with what attention `a` predicts after tokens[i], `i` ascending, on
  // another thread, one call at a time. What each one's attention did.
  using OnLogits = std::function<void(int attention, int token, absl::Span<const float> logits)>;
  absl::StatusOr<std::vector<AttentionStats>> Score(absl::Span<const int32_t> tokens,
                                                    absl::Span<const AttentionParams> attentions,
                                                    const OnLogits& on_logits);

 private:
  static constexpr const char* kName = "text";

  PromptScorer() : metrics_(BuildLabels{}) {}

  RealClock clock_;
  Metrics metrics_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<Engine> engine_;  // last: its thread uses the others
};

}  // namespace tokenbutler
