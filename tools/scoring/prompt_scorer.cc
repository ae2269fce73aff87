#include "tools/scoring/prompt_scorer.h"

#include <utility>

#include "base/mutex.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

// Waits for one request; what it is told on the way goes to callbacks.
class ScoreSink : public TokenSink {
 public:
  std::function<void(int done)> on_progress;
  std::function<void(int position, absl::Span<const float> logits)> on_logits;

  void OnProgress(const PrefillProgress& progress) override {
    if (on_progress) on_progress(progress.processed_tokens);
  }
  void OnPromptLogprobs(std::vector<PositionLogprobs>) override {}
  void OnLogits(int position, absl::Span<const float> logits) override {
    if (on_logits) on_logits(position, logits);
  }
  void OnChunk(const OutputChunk&) override {}
  void OnFinished(FinishedOutput output) override {
    MutexLock lock(&mutex_);
    if (output.attention.has_value()) stats_ = *output.attention;
  }
  void OnDone(absl::Status status) override {
    MutexLock lock(&mutex_);
    status_ = std::move(status);
    is_done_ = true;
    done_.SignalAll();
  }

  absl::StatusOr<AttentionStats> Wait() {
    MutexLock lock(&mutex_);
    while (!is_done_) done_.Wait(&mutex_);
    RETURN_IF_ERROR(status_);
    return stats_;
  }

 private:
  Mutex mutex_;
  CondVar done_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  AttentionStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<PromptScorer>> PromptScorer::Create(MeasuredModel& model,
                                                                   const Options& options) {
  auto scorer = std::unique_ptr<PromptScorer>(new PromptScorer());
  EngineConfig config;
  config.max_model_len = options.context_len;
  config.max_num_seqs = options.max_num_seqs;
  config.prefill_chunk_tokens = options.prefill_chunk_tokens;
  config.max_queue_time = absl::InfiniteDuration();
  ASSIGN_OR_RETURN(scorer->engine_, Engine::Create(config, {.runner = &model.runner(),
                                                            .tokenizer = &model.tokenizer(),
                                                            .block_pool = &model.blocks(),
                                                            .clock = &scorer->clock_,
                                                            .metrics = &scorer->metrics_,
                                                            .compute_pool = &model.pool()}));
  return scorer;
}

absl::Status PromptScorer::Hold(absl::Span<const int32_t> prompt,
                                std::vector<AttentionParams> attentions,
                                std::shared_ptr<const PromptRows> rows,
                                const std::function<void(int)>& progress) {
  engine_->DropPrompt(kName);
  prompt_.assign(prompt.begin(), prompt.end());
  GenerationRequest request;
  request.request_id = "prefill";
  request.prompt_token_ids = prompt_;
  request.prompt_rows = std::move(rows);
  request.hold = {.name = kName, .attentions = std::move(attentions)};
  request.output.return_progress = true;
  const auto sink = std::make_shared<ScoreSink>();
  sink->on_progress = progress;
  RETURN_IF_ERROR(engine_->Submit(std::move(request), sink));
  return sink->Wait().status();
}

absl::StatusOr<std::vector<AttentionStats>> PromptScorer::Score(
    absl::Span<const int32_t> tokens, absl::Span<const AttentionParams> attentions,
    const OnLogits& on_logits) {
  std::vector<std::shared_ptr<ScoreSink>> sinks;
  absl::Status status;
  for (size_t a = 0; a < attentions.size() && status.ok(); ++a) {
    GenerationRequest request;
    request.request_id = fmt::format("score {}", a);
    request.prompt_token_ids = prompt_;
    request.continues = kName;
    request.score_token_ids.assign(tokens.begin(), tokens.end());
    request.attention = attentions[a];
    const auto sink = std::make_shared<ScoreSink>();
    // Position 0 would be the prompt's own; position i + 1 comes after tokens[i].
    sink->on_logits = [a, &on_logits](int position, absl::Span<const float> logits) {
      on_logits(static_cast<int>(a), position - 1, logits);
    };
    status = engine_->Submit(std::move(request), sink);
    if (status.ok()) sinks.push_back(sink);
  }
  // They use the caller's function: all must be over before this returns.
  std::vector<AttentionStats> all;
  for (const auto& sink : sinks) {
    absl::StatusOr<AttentionStats> stats = sink->Wait();
    if (stats.ok()) {
      all.push_back(*stats);
    } else if (status.ok()) {
      status = stats.status();
    }
  }
  RETURN_IF_ERROR(status);
  return all;
}

}  // namespace tokenbutler
