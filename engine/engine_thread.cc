#include "engine/engine_thread.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/metrics.h"
#include "base/status_details.h"
#include "engine/request_metrics.h"
#include "engine/start_request.h"
#include "offload/block_pool.h"

namespace tokenbutler {
namespace {

// What a refused or timed-out request is told to wait before it comes again.
constexpr absl::Duration kRetryDelay = absl::Seconds(1);

std::string_view View(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// The same status with nothing shared: a status that crosses threads must not carry a reference
// count of the library's along, which ThreadSanitizer cannot see.
absl::Status Copy(const absl::Status& status) {
  absl::Status copy(status.code(), std::string(status.message()));
  status.ForEachPayload([&copy](absl::string_view url, const absl::Cord& payload) {
    copy.SetPayload(url, absl::Cord(std::string(payload)));
  });
  return copy;
}

std::string_view StageName(RequestState::Stage stage) {
  switch (stage) {
    case RequestState::Stage::kQueued:
      return "in the queue";
    case RequestState::Stage::kPrefill:
      return "during prefill";
    case RequestState::Stage::kDecode:
      return "while decoding";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineConfig config, Parts parts) {
  RETURN_IF_ERROR(config.Validate());
  if (config.max_model_len == 0) {
    return InvalidArgumentError("max_model_len is 0, must be the model's or a smaller length");
  }
  return std::unique_ptr<Engine>(std::make_unique<EngineThread>(config, parts));
}

EngineThread::EngineThread(const EngineConfig& config, const Parts& parts)
    : config_(config),
      parts_(parts),
      limits_{.config = config,
              .layout = parts.block_pool->layout(),
              .num_blocks = parts.block_pool->num_blocks(),
              .vocab_size = parts.runner->vocab_size(),
              .eos_ids = parts.tokenizer->eos_ids(),
              .runner = parts.runner},
      scheduler_(config, parts.block_pool),
      committer_(parts, limits_, &scheduler_),
      seeds_(std::random_device{}()) {
  load_.kv_capacity_bytes =
      int64_t{limits_.num_blocks} * static_cast<int64_t>(limits_.layout.block_bytes());
  parts_.metrics->kv_host_capacity_bytes.Set(static_cast<double>(load_.kv_capacity_bytes));
  thread_ = std::thread([this] { Loop(); });
}

EngineThread::~EngineThread() {
  StartDraining();
  AbortAll(absl::CancelledError("the engine shuts down"));
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  thread_.join();
  MutexLock lock(&mutex_);
  prompts_.DropAll();
  for (const auto& prompt : prompts_.TakeUnused()) scheduler_.Release(prompt.get());
}

absl::Status EngineThread::Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) {
  if (request.continues.empty()) {
    const absl::StatusOr<Footprint> footprint = CheckFootprint(request, /*prefix=*/nullptr);
    MutexLock lock(&mutex_);
    return Enqueue(std::move(request), footprint, /*prefix=*/nullptr, std::move(sink));
  }
  // Under the mutex throughout: nobody may keep a prompt unseen by ReleaseDropped.
  MutexLock lock(&mutex_);
  std::shared_ptr<const HeldPrompt> prefix = prompts_.Find(request.continues);
  if (prefix == nullptr) {
    return NotFoundError("no prompt is held as \"{}\"", request.continues);
  }
  const absl::StatusOr<Footprint> footprint = CheckFootprint(request, prefix.get());
  return Enqueue(std::move(request), footprint, std::move(prefix), std::move(sink));
}

absl::StatusOr<Footprint> EngineThread::CheckFootprint(const GenerationRequest& request,
                                                       const HeldPrompt* prefix) const {
  absl::StatusOr<Footprint> footprint = CheckAdmissible(request, limits_, prefix);
  if (footprint.status().code() == absl::StatusCode::kResourceExhausted) {
    parts_.metrics->kv_host_alloc_failures_total.Increment();
  }
  return footprint;
}

absl::Status EngineThread::Enqueue(GenerationRequest request,
                                   const absl::StatusOr<Footprint>& footprint,
                                   std::shared_ptr<const HeldPrompt> prefix,
                                   std::shared_ptr<TokenSink> sink) {
  RETURN_IF_ERROR(footprint.status());
  RETURN_IF_ERROR(CheckQueue(request));
  if (!request.hold.name.empty() && !prompts_.Reserve(request.hold.name)) {
    return AlreadyExistsError("a prompt is held as \"{}\" already", request.hold.name);
  }
  const uint64_t seed = request.sampling.seed.has_value() ? *request.sampling.seed : seeds_();
  std::unique_ptr<RequestState> state = MakeRequest({.request = std::move(request),
                                                     .footprint = *footprint,
                                                     .prefix = std::move(prefix),
                                                     .sink = std::move(sink),
                                                     .ticket = next_ticket_++,
                                                     .seed = seed,
                                                     .now = parts_.clock->Now()},
                                                    limits_);
  ++load_.requests_waiting;
  load_.waiting_prompt_tokens += state->prompt_tokens();
  mail_prompt_tokens_ += state->prompt_tokens();
  parts_.metrics->requests_waiting.Set(load_.requests_waiting);
  ++num_unfinished_;
  mail_requests_.push_back(state.get());
  const std::string& id = state->request.request_id;
  active_.emplace(id, Active{.state = std::move(state)});
  wake_.Signal();
  return absl::OkStatus();
}

absl::Status EngineThread::CheckQueue(const GenerationRequest& request) const {
  if (draining_) return UnavailableError("the server is shutting down, no new requests are taken");
  if (active_.count(request.request_id) > 0) {
    return AlreadyExistsError("request_id \"{}\" is running already", request.request_id);
  }
  if (load_.requests_waiting >= config_.max_waiting_requests) {
    return WithRetryDelay(
        ResourceExhaustedError("{} requests are waiting, the queue holds {}",
                               load_.requests_waiting, config_.max_waiting_requests),
        kRetryDelay);
  }
  // A prompt longer than the bound is taken when it would wait alone: it could never come in else.
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt_token_ids.size());
  if (load_.requests_waiting > 0 &&
      load_.waiting_prompt_tokens + prompt_tokens > config_.max_waiting_tokens) {
    return WithRetryDelay(
        ResourceExhaustedError("{} prompt tokens are waiting and the request has {}, the queue "
                               "holds {}",
                               load_.waiting_prompt_tokens, prompt_tokens,
                               config_.max_waiting_tokens),
        kRetryDelay);
  }
  return absl::OkStatus();
}

bool EngineThread::Abort(const std::string& request_id, absl::Status reason) {
  MutexLock lock(&mutex_);
  const auto it = active_.find(request_id);
  if (it == active_.end()) return false;
  NoteAbort(&it->second, reason);
  return true;
}

void EngineThread::AbortAll(absl::Status reason) {
  MutexLock lock(&mutex_);
  for (auto& [id, active] : active_) NoteAbort(&active, reason);
}

void EngineThread::NoteAbort(Active* active, const absl::Status& reason) {
  if (active->aborting) return;
  active->aborting = true;
  mail_aborts_.emplace_back(active->state.get(), Copy(reason));
  wake_.Signal();
}

bool EngineThread::DropPrompt(const std::string& name) {
  MutexLock lock(&mutex_);
  if (!prompts_.Drop(name)) return false;
  mail_drops_ = true;
  wake_.Signal();
  return true;
}

absl::StatusOr<BlockTable> EngineThread::HeldBlocks(const std::string& name) const {
  MutexLock lock(&mutex_);
  const std::shared_ptr<const HeldPrompt> prompt = prompts_.Find(name);
  if (prompt == nullptr) return NotFoundError("no prompt is held as \"{}\"", name);
  return prompt->table;
}

EngineLoad EngineThread::load() const {
  MutexLock lock(&mutex_);
  return load_;
}

void EngineThread::StartDraining() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

bool EngineThread::WaitUntilIdle(absl::Duration timeout) {
  const absl::Time limit = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  while (num_unfinished_ > 0) {
    const absl::Duration left = limit - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

void EngineThread::Loop() {
  while (TakeMail()) {
    EndExpired();
    AdmitRequests();
    const ScheduledStep& step = scheduler_.Schedule(parts_.clock->Now());
    PublishLoad();
    if (!step.empty()) RunStep(step);
    LetGoOfEnded();
  }
}

bool EngineThread::TakeMail() {
  {
    MutexLock lock(&mutex_);
    while (scheduler_.idle() && mail_requests_.empty() && mail_aborts_.empty() && !mail_drops_) {
      if (stopping_) return false;
      wake_.Wait(&mutex_);
    }
    new_requests_.swap(mail_requests_);
    aborts_.swap(mail_aborts_);
    mail_prompt_tokens_ = 0;
    mail_drops_ = false;
  }
  ReleaseDropped();
  for (RequestState* request : new_requests_) scheduler_.Enqueue(request);
  for (const auto& [request, reason] : aborts_) committer_.Abort(request, reason);
  new_requests_.clear();
  aborts_.clear();
  LetGoOfEnded();
  return true;
}

void EngineThread::EndExpired() {
  const absl::Time now = parts_.clock->Now();
  expired_.clear();
  scheduler_.CollectExpired(now, &expired_);
  for (RequestState* request : expired_) {
    if (now >= request->request.deadline) {
      committer_.Abort(request, absl::DeadlineExceededError(fmt::format(
                                    "the deadline passed {}", StageName(request->stage))));
    } else {
      committer_.Abort(request,
                       WithRetryDelay(ResourceExhaustedError(
                                          "the request waited for {}, the limit (max_queue_time)",
                                          absl::FormatDuration(config_.max_queue_time)),
                                      kRetryDelay));
    }
  }
  LetGoOfEnded();
}

void EngineThread::AdmitRequests() {
  while (true) {
    const absl::Span<RequestState* const> admitted = scheduler_.Admit();
    for (size_t i = 0; i < admitted.size(); ++i) {
      RequestState* request = admitted[i];
      const absl::Status status =
          StartRequest(limits_.layout, *parts_.runner, parts_.clock->Now(), request);
      if (status.ok()) {
        if (request->num_prefilled == request->prefill_tokens()) committer_.SkipPrefill(request);
        continue;
      }
      // What others hold comes back; those behind it wait too, so that it gets its turn.
      const bool may_fit_later = status.code() == absl::StatusCode::kResourceExhausted &&
                                 parts_.runner->device_kv_used_bytes() > 0;
      if (may_fit_later) {
        for (size_t j = i; j < admitted.size(); ++j) scheduler_.PutBack(admitted[j]);
        LetGoOfEnded();
        return;
      }
      committer_.Abort(request, status);
    }
    // A request that ended here has left its place to others.
    if (committer_.ended().empty()) return;
    LetGoOfEnded();
  }
}

void EngineThread::RunStep(const ScheduledStep& step) {
  const absl::Status status = parts_.runner->Run(step.plan);
  if (status.ok()) {
    committer_.Commit(step);
    return;
  }
  LogError("a step of {} decode items and {} prefill chunks failed: {}", step.decode.size(),
           step.prefill.size(), View(status));
  RunAlone(step);
}

void EngineThread::RunAlone(const ScheduledStep& step) {
  const auto run = [this](RequestState* request) {
    const absl::Status status = parts_.runner->Run(single_);
    if (!status.ok()) {
      LogRequest(LogLevel::kError, request->request.request_id, "its step failed: {}",
                 View(status));
      committer_.Abort(request, InternalError("the step failed: {}", View(status)));
    }
    return status.ok();
  };
  for (size_t i = 0; i < step.decode.size(); ++i) {
    if (step.decode[i]->request->end.has_value()) continue;
    single_.prefill_chunks.clear();
    single_.decode.assign(1, step.plan.decode[i]);
    if (run(step.decode[i]->request)) {
      committer_.CommitDecode(step.decode[i], parts_.runner->decode_logits(0));
    }
  }
  for (size_t c = 0; c < step.prefill.size(); ++c) {
    single_.decode.clear();
    single_.prefill_chunks.assign(1, step.plan.prefill_chunks[c]);
    if (run(step.prefill[c])) {
      committer_.CommitChunk(step.prefill[c], single_.prefill_chunks[0],
                             parts_.runner->prefill_logits(0));
    }
  }
}

void EngineThread::LetGoOfEnded() {
  if (committer_.ended().empty()) return;
  for (RequestState* request : committer_.ended()) LetGo(request);
  committer_.ended().clear();
}

void EngineThread::LetGo(RequestState* request) {
  absl::Status status = *std::move(request->end);
  std::unique_ptr<HeldPrompt> held = std::move(request->hold);
  const bool is_held = held != nullptr && held->table.num_tokens == held->num_tokens();
  if (held != nullptr && !is_held) scheduler_.Release(held.get());
  scheduler_.Remove(request);
  RecordEnd(*request, status, parts_.clock->Now(), parts_.metrics);
  std::unique_ptr<RequestState> state;
  {
    MutexLock lock(&mutex_);
    const auto it = active_.find(request->request.request_id);
    state = std::move(it->second.state);
    active_.erase(it);
    if (is_held) {
      prompts_.Add(std::move(held));
    } else if (held != nullptr) {
      prompts_.Cancel(held->name);
    }
    // An abort that came after the end has no request any more.
    std::erase_if(mail_aborts_, [&](const AbortNote& note) { return note.first == request; });
  }
  state->prefix = nullptr;
  ReleaseDropped();
  PublishLoad();
  state->sink->OnDone(std::move(status));
  state.reset();
  MutexLock lock(&mutex_);
  if (--num_unfinished_ == 0) idle_.SignalAll();
}

void EngineThread::ReleaseDropped() {
  std::vector<std::shared_ptr<HeldPrompt>> unused;
  {
    MutexLock lock(&mutex_);
    unused = prompts_.TakeUnused();
  }
  for (const auto& prompt : unused) scheduler_.Release(prompt.get());
}

void EngineThread::PublishLoad() {
  const int64_t block_bytes = static_cast<int64_t>(limits_.layout.block_bytes());
  const int64_t used = int64_t{parts_.block_pool->num_used()} * block_bytes;
  const int64_t failed_to_fit = scheduler_.num_failed_to_fit();
  Metrics& metrics = *parts_.metrics;
  if (failed_to_fit > num_failed_to_fit_) {
    metrics.kv_host_alloc_failures_total.Increment(
        static_cast<double>(failed_to_fit - num_failed_to_fit_));
    num_failed_to_fit_ = failed_to_fit;
  }
  MutexLock lock(&mutex_);
  load_.requests_running = scheduler_.num_running();
  load_.requests_waiting = scheduler_.num_waiting() + static_cast<int>(mail_requests_.size());
  load_.waiting_prompt_tokens = scheduler_.waiting_prompt_tokens() + mail_prompt_tokens_;
  load_.kv_used_bytes = used;
  metrics.requests_running.Set(load_.requests_running);
  metrics.requests_waiting.Set(load_.requests_waiting);
  metrics.kv_host_used_bytes.Set(static_cast<double>(used));
  metrics.kv_host_reserved_bytes.Set(
      static_cast<double>(int64_t{scheduler_.num_reserved_blocks()} * block_bytes));
  metrics.kv_host_high_water_bytes.Set(
      static_cast<double>(int64_t{parts_.block_pool->high_water()} * block_bytes));
  metrics.kv_device_used_bytes.Set(static_cast<double>(parts_.runner->device_kv_used_bytes()));
}

}  // namespace tokenbutler
