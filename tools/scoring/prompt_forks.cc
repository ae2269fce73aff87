#include "tools/scoring/prompt_forks.h"

#include <limits>
#include <utility>

#include "base/mutex.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

// Waits for one request; what it is told on the way goes to callbacks.
class ForkSink : public TokenSink {
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
  void OnChunk(const OutputChunk& chunk) override {
    MutexLock lock(&mutex_);
    Completion& completion = CompletionOf(chunk.index);
    completion.text += chunk.text;
    completion.token_ids.insert(completion.token_ids.end(), chunk.token_ids.begin(),
                                chunk.token_ids.end());
  }
  void OnFinished(FinishedOutput output) override {
    MutexLock lock(&mutex_);
    if (output.attention.has_value()) result_.attention = *output.attention;
    result_.probes = std::move(output.probes);
    if (output.completion_tokens > 0) CompletionOf(output.index).reason = output.reason;
  }
  void OnDone(absl::Status status) override {
    MutexLock lock(&mutex_);
    status_ = std::move(status);
    is_done_ = true;
    done_.SignalAll();
  }

  absl::StatusOr<ContinuationResult> Wait() {
    MutexLock lock(&mutex_);
    while (!is_done_) done_.Wait(&mutex_);
    RETURN_IF_ERROR(status_);
    return std::move(result_);
  }

 private:
  Completion& CompletionOf(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t at = static_cast<size_t>(index);
    if (result_.completions.size() <= at) result_.completions.resize(at + 1);
    return result_.completions[at];
  }

  Mutex mutex_;
  CondVar done_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  ContinuationResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<PromptForks>> PromptForks::Create(MeasuredModel& model,
                                                                 const Options& options) {
  auto forks = std::unique_ptr<PromptForks>(new PromptForks());
  EngineConfig config;
  config.max_model_len = options.context_len;
  config.max_num_seqs = options.max_num_seqs;
  config.prefill_chunk_tokens = options.prefill_chunk_tokens;
  config.max_queue_time = absl::InfiniteDuration();
  config.max_waiting_requests = 1 << 20;
  config.max_waiting_tokens = std::numeric_limits<int64_t>::max() / 2;
  ASSIGN_OR_RETURN(forks->engine_, Engine::Create(config, {.runner = &model.runner(),
                                                           .tokenizer = &model.tokenizer(),
                                                           .block_pool = &model.blocks(),
                                                           .clock = &forks->clock_,
                                                           .metrics = &forks->metrics_,
                                                           .compute_pool = &model.pool()}));
  return forks;
}

absl::Status PromptForks::Hold(absl::Span<const int32_t> prompt,
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
  const auto sink = std::make_shared<ForkSink>();
  sink->on_progress = progress;
  RETURN_IF_ERROR(engine_->Submit(std::move(request), sink));
  return sink->Wait().status();
}

GenerationRequest PromptForks::RequestOf(const Continuation& continuation, size_t index) const {
  const std::vector<int32_t>& question = continuation.question;
  const bool is_decoded = continuation.question_is_decoded;
  GenerationRequest request;
  request.request_id = fmt::format("continuation {}", index);
  request.prompt_token_ids = prompt_;
  request.continues = kName;
  request.attention = continuation.attention;
  request.probe = continuation.probe;
  request.max_tokens = continuation.max_tokens;
  request.sampling = continuation.sampling;
  request.stop = continuation.stop;
  request.output.return_token_ids = true;
  // A decoded question is scored along with what follows it, or is a part of the prompt that is.
  if (is_decoded && continuation.max_tokens == 0) {
    request.score_token_ids = question;
  } else {
    request.prompt_token_ids.insert(request.prompt_token_ids.end(), question.begin(),
                                    question.end());
    if (is_decoded) request.decoded_prompt_tokens = static_cast<int>(question.size());
  }
  request.score_token_ids.insert(request.score_token_ids.end(), continuation.scored.begin(),
                                 continuation.scored.end());
  return request;
}

absl::StatusOr<std::vector<ContinuationResult>> PromptForks::Run(
    absl::Span<const Continuation> continuations, const OnLogits& on_logits) {
  std::vector<std::shared_ptr<ForkSink>> sinks;
  absl::Status status;
  for (size_t c = 0; c < continuations.size() && status.ok(); ++c) {
    GenerationRequest request = RequestOf(continuations[c], c);
    const auto sink = std::make_shared<ForkSink>();
    // The engine counts from what follows its prompt: position p comes after p tokens of that.
    const int before = static_cast<int>(request.score_token_ids.size()) -
                       static_cast<int>(continuations[c].scored.size()) + 1;
    sink->on_logits = [c, before, &on_logits](int position, absl::Span<const float> logits) {
      if (on_logits && position >= before - 1) {
        on_logits(static_cast<int>(c), position - before, logits);
      }
    };
    status = engine_->Submit(std::move(request), sink);
    if (status.ok()) sinks.push_back(sink);
  }
  // They use the caller's function: all must be over before this returns.
  std::vector<ContinuationResult> results;
  for (const auto& sink : sinks) {
    absl::StatusOr<ContinuationResult> result = sink->Wait();
    if (result.ok()) {
      results.push_back(*std::move(result));
    } else if (status.ok()) {
      status = result.status();
    }
  }
  RETURN_IF_ERROR(status);
  return results;
}

}  // namespace tokenbutler
