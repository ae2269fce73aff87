#include "tests/testing/fake_engine.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status.h"

namespace tokenbutler {
namespace {

constexpr int64_t kKvBytesPerToken = 1000;
constexpr int64_t kKvCapacityBytes = 1'000'000'000;

PositionLogprobs FakeLogprobs(int32_t token_id, int top) {
  PositionLogprobs logprobs;
  logprobs.chosen = {.token_id = token_id, .logprob = -0.5f, .rank = 1};
  for (int i = 0; i < top; ++i) {
    logprobs.top.push_back(
        {.token_id = i, .logprob = -0.5f - static_cast<float>(i), .rank = i + 1});
  }
  return logprobs;
}

}  // namespace

FakeEngine::FakeEngine(Options options, const Clock* clock, Metrics* metrics)
    : clock_(clock), metrics_(metrics), options_(std::move(options)), thread_([this] { Loop(); }) {
  metrics_->kv_host_capacity_bytes.Set(kKvCapacityBytes);
}

FakeEngine::~FakeEngine() {
  AbortAll(absl::CancelledError("the engine is being destroyed"));
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    held_ = false;
    changed_.SignalAll();
  }
  thread_.join();
}

void FakeEngine::RefuseWith(absl::Status status) {
  MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

void FakeEngine::Hold(bool hold) {
  MutexLock lock(&mutex_);
  held_ = hold;
  changed_.SignalAll();
}

void FakeEngine::SetStep(absl::Duration step) {
  MutexLock lock(&mutex_);
  options_.step = step;
}

int FakeEngine::num_submitted() const {
  MutexLock lock(&mutex_);
  return num_submitted_;
}

GenerationRequest FakeEngine::last_request() const {
  MutexLock lock(&mutex_);
  return last_request_;
}

absl::Status FakeEngine::Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) {
  MutexLock lock(&mutex_);
  if (draining_) return UnavailableError("the engine is draining");
  RETURN_IF_ERROR(refusal_);
  ++num_submitted_;
  last_request_ = request;
  Active& active = active_.emplace_back();
  active.request = std::move(request);
  active.sink = std::move(sink);
  metrics_->requests_waiting.Increment();
  changed_.SignalAll();
  return absl::OkStatus();
}

bool FakeEngine::Abort(const std::string& request_id, absl::Status reason) {
  MutexLock lock(&mutex_);
  for (Active& active : active_) {
    if (active.request.request_id != request_id) continue;
    if (!active.abort) active.abort = std::move(reason);
    changed_.SignalAll();
    return true;
  }
  return false;
}

EngineLoad FakeEngine::load() const {
  EngineLoad load;
  load.requests_running = static_cast<int>(metrics_->requests_running.Value());
  load.requests_waiting = static_cast<int>(metrics_->requests_waiting.Value());
  load.kv_used_bytes = static_cast<int64_t>(metrics_->kv_host_used_bytes.Value());
  load.kv_capacity_bytes = kKvCapacityBytes;
  return load;
}

void FakeEngine::StartDraining() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

bool FakeEngine::WaitUntilIdle(absl::Duration timeout) {
  const absl::Time limit = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  while (!active_.empty()) {
    const absl::Duration left = limit - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

void FakeEngine::AbortAll(absl::Status reason) {
  MutexLock lock(&mutex_);
  for (Active& active : active_) {
    if (!active.abort) active.abort = reason;
  }
  changed_.SignalAll();
}

void FakeEngine::Loop() {
  while (true) {
    absl::Duration pause;
    {
      MutexLock lock(&mutex_);
      // A held engine still notices aborts and deadlines, as the real one does between steps.
      while (!stopping_ && active_.empty()) changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
      if (stopping_ && active_.empty()) return;
      pause = held_ ? absl::Milliseconds(1) : options_.step;
    }
    Step();
    if (pause > absl::ZeroDuration()) absl::SleepFor(pause);
  }
}

void FakeEngine::Step() {
  std::vector<std::list<Active>::iterator> now;
  int num_running = 0;
  {
    MutexLock lock(&mutex_);
    for (auto it = active_.begin(); it != active_.end(); ++it) {
      now.push_back(it);
      num_running += it->stage != Stage::kQueue;
    }
  }
  for (const auto& it : now) {
    const bool was_waiting = it->stage == Stage::kQueue;
    const bool over = Advance(*it, num_running);
    num_running += was_waiting && it->stage != Stage::kQueue;
    if (!over) continue;
    MutexLock lock(&mutex_);
    active_.erase(it);
    changed_.SignalAll();
  }
}

bool FakeEngine::Advance(Active& active, int num_running) {
  std::optional<absl::Status> abort;
  bool held = false;
  int max_running = 0;
  int prefill_steps = 0;
  {
    MutexLock lock(&mutex_);
    abort = active.abort;
    held = held_;
    max_running = options_.max_running;
    prefill_steps = options_.prefill_steps;
  }
  if (!abort && clock_->Now() >= active.request.deadline) {
    abort = absl::DeadlineExceededError("the deadline passed");
  }
  if (abort) {
    if (absl::IsDeadlineExceeded(*abort)) CountDeadline(active.stage);
    End(active, FinishReason::kCancelled, *abort);
    return true;
  }
  if (held) return false;
  if (active.stage == Stage::kQueue) {
    if (num_running >= max_running) return false;
    active.stage = Stage::kPrefill;
    metrics_->requests_waiting.Decrement();
    metrics_->requests_running.Increment();
    metrics_->kv_host_used_bytes.Increment(
        static_cast<double>(kKvBytesPerToken * active.request.prompt_token_ids.size()));
    return false;
  }
  if (active.stage == Stage::kPrefill) {
    if (++active.steps_in_prefill < prefill_steps) return false;
    Prefill(active);
  }
  if (active.num_tokens < active.request.max_tokens) Decode(active);
  if (active.num_tokens < active.request.max_tokens) return false;
  End(active, FinishReason::kLength, absl::OkStatus());
  return true;
}

void FakeEngine::Prefill(Active& active) {
  const GenerationRequest& request = active.request;
  const int num_prompt = static_cast<int>(request.prompt_token_ids.size());
  metrics_->prompt_tokens_total.Increment(num_prompt);
  if (request.output.return_progress) {
    active.sink->OnProgress({.total_tokens = num_prompt,
                             .cached_tokens = 0,
                             .processed_tokens = num_prompt,
                             .elapsed = absl::Milliseconds(1)});
  }
  if (request.logprobs.include_prompt) {
    std::vector<PositionLogprobs> logprobs;
    for (int i = 1; i < num_prompt; ++i) {
      logprobs.push_back(FakeLogprobs(request.prompt_token_ids[i], *request.logprobs.top));
    }
    active.sink->OnPromptLogprobs(std::move(logprobs));
  }
  active.stage = Stage::kDecode;
}

void FakeEngine::Decode(Active& active) {
  const GenerationRequest& request = active.request;
  std::string text;
  {
    MutexLock lock(&mutex_);
    text = options_.token_text;
  }
  const int32_t token = static_cast<uint8_t>(text[0]);
  for (int index = 0; index < request.sampling.n; ++index) {
    OutputChunk chunk;
    chunk.index = index;
    chunk.text = text;
    if (request.output.return_token_ids) chunk.token_ids.push_back(token);
    if (request.logprobs.top) chunk.logprobs.push_back(FakeLogprobs(token, *request.logprobs.top));
    metrics_->generation_tokens_total.Increment();
    active.sink->OnChunk(chunk);
  }
  ++active.num_tokens;
}

void FakeEngine::End(Active& active, FinishReason reason, absl::Status status) {
  const GenerationRequest& request = active.request;
  if (active.stage == Stage::kQueue) {
    metrics_->requests_waiting.Decrement();
  } else {
    metrics_->requests_running.Decrement();
    metrics_->kv_host_used_bytes.Decrement(
        static_cast<double>(kKvBytesPerToken * request.prompt_token_ids.size()));
  }
  for (int index = 0; status.ok() && index < request.sampling.n; ++index) {
    FinishedOutput output;
    output.index = index;
    output.reason = reason;
    output.prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
    output.completion_tokens = active.num_tokens;
    output.seed = request.sampling.seed.value_or(7);
    (reason == FinishReason::kLength ? metrics_->finished_total.length
                                     : metrics_->finished_total.cancelled)
        .Increment();
    active.sink->OnFinished(std::move(output));
  }
  active.sink->OnDone(std::move(status));
}

void FakeEngine::CountDeadline(Stage stage) {
  Metrics::DeadlineExpiredTotal& total = metrics_->deadline_expired_total;
  (stage == Stage::kQueue     ? total.queue
   : stage == Stage::kPrefill ? total.prefill
                              : total.decode)
      .Increment();
}

}  // namespace tokenbutler
