#include "server/stream_writer.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "base/status.h"
#include "grpcpp/server_context.h"
#include "server/grpc_status.h"
#include "server/proto_convert.h"
#include "server/wire_codec.h"

namespace tokenbutler {

std::shared_ptr<StreamWriter> StreamWriter::Create(grpc::CallbackServerContext* context,
                                                   const Parts& parts, Options options) {
  std::shared_ptr<StreamWriter> writer(new StreamWriter(context, parts, std::move(options)));
  writer->self_ = writer;
  return writer;
}

StreamWriter::~StreamWriter() = default;

StreamWriter::StreamWriter(grpc::CallbackServerContext* context, const Parts& parts,
                           Options options)
    : parts_(parts),
      options_(std::move(options)),
      context_(context),
      queue_(options_.max_pending_bytes, options_.num_completions),
      message_(std::make_unique<v1::GenerateResponse>()) {
  parts_.metrics->open_streams.Increment();
  context_->AddInitialMetadata("x-request-id", options_.request_id);
}

void StreamWriter::EndBeforeEngine(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (stage_ != Stage::kPreparing) return;
    stage_ = Stage::kEnded;
    if (absl::IsDeadlineExceeded(status))
      parts_.metrics->deadline_expired_total.prepare.Increment();
    final_status_ = std::move(status);
  }
  Pump();
}

bool StreamWriter::ended() const {
  MutexLock lock(&mutex_);
  return stage_ == Stage::kEnded;
}

void StreamWriter::SubmitTo(std::shared_ptr<const ServedModel> model, GenerationRequest request) {
  Engine* const engine = model->engine;
  {
    MutexLock lock(&mutex_);
    if (stage_ != Stage::kPreparing) return;
    stage_ = Stage::kInEngine;
    model_ = std::move(model);
  }
  absl::Status submitted = engine->Submit(std::move(request), shared_from_this());
  if (!submitted.ok()) {
    OnDone(std::move(submitted));
    return;
  }
  // A cancellation that came meanwhile did not find the request in the engine.
  std::optional<absl::Status> reason;
  {
    MutexLock lock(&mutex_);
    if (stage_ == Stage::kInEngine) reason = abort_reason_;
  }
  if (reason) engine->Abort(request_id(), *std::move(reason));
}

void StreamWriter::Abort() {
  bool in_engine = true;
  {
    MutexLock lock(&mutex_);
    if (stage_ == Stage::kPreparing) {
      in_engine = false;
      stage_ = Stage::kEnded;
      final_status_ = absl::OkStatus();
      for (int index = 0; index < options_.num_completions; ++index) {
        FinishedOutput output;
        output.index = index;
        output.reason = FinishReason::kCancelled;
        queue_.Push(std::move(output));
      }
    }
  }
  if (in_engine) {
    AbortWith(absl::OkStatus());
  } else {
    Pump();
  }
}

void StreamWriter::AbortWith(absl::Status reason) {
  Engine* engine = nullptr;
  {
    MutexLock lock(&mutex_);
    if (stage_ == Stage::kInEngine) {
      engine = model_->engine;
      abort_reason_ = reason;
    }
  }
  if (engine != nullptr) {
    engine->Abort(request_id(), std::move(reason));
  } else {
    EndBeforeEngine(std::move(reason));
  }
}

void StreamWriter::CheckStall(absl::Time now) {
  absl::Duration stalled;
  {
    MutexLock lock(&mutex_);
    if (!write_in_flight_) return;
    stalled = now - write_started_;
  }
  if (stalled < options_.stall_limit) return;
  EndStalled(fmt::format("took in nothing for {:.1f} s, at most {:.1f} s are allowed",
                         absl::ToDoubleSeconds(stalled),
                         absl::ToDoubleSeconds(options_.stall_limit)));
}

void StreamWriter::EndStalled(const std::string& why) {
  {
    MutexLock lock(&mutex_);
    if (stalled_ || finish_called_) return;
    stalled_ = true;
    finish_held_ = true;  // so that context_ stays valid below
  }
  parts_.metrics->slow_reader_aborts_total.Increment();
  LogRequest(LogLevel::kWarning, request_id(), "slow reader: the client {}", why);
  // A status could not reach this client: it would queue behind the data it does not read.
  context_->TryCancel();
  {
    MutexLock lock(&mutex_);
    finish_held_ = false;
  }
  AbortWith(absl::CancelledError(fmt::format("slow reader: the client {}", why)));
  Pump();
}

void StreamWriter::OnProgress(const PrefillProgress& progress) { Queued(queue_.Push(progress)); }

void StreamWriter::OnPromptLogprobs(std::vector<PositionLogprobs> logprobs) {
  Queued(queue_.Push(std::move(logprobs)));
}

void StreamWriter::OnLogits(int, absl::Span<const float>) {
  // Scoring mode is not on the wire: no request made here asks for it.
}

void StreamWriter::OnChunk(const OutputChunk& chunk) { Queued(queue_.Push(chunk)); }

void StreamWriter::OnFinished(FinishedOutput output) { Queued(queue_.Push(std::move(output))); }

void StreamWriter::OnDone(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    stage_ = Stage::kEnded;
    final_status_ = std::move(status);
  }
  Queued(/*within_bound=*/true);
}

void StreamWriter::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    write_in_flight_ = false;
    if (!ok) client_gone_ = true;
  }
  if (!ok) {
    queue_.Close();
    AbortWith(CancelReason());
  }
  Pump();
}

void StreamWriter::OnCancel() {
  {
    MutexLock lock(&mutex_);
    client_gone_ = true;
  }
  queue_.Close();
  AbortWith(CancelReason());
}

void StreamWriter::OnDone() {
  parts_.metrics->open_streams.Decrement();
  options_.on_closed(options_.request_id);
  self_.reset();  // may delete this
}

void StreamWriter::Queued(bool within_bound) {
  {
    MutexLock lock(&mutex_);
    // OnWriteDone goes on with what waits by then.
    if (write_in_flight_ && (within_bound || stalled_)) return;
  }
  parts_.write_threads->WriteSoon(shared_from_this());
}

void StreamWriter::WriteReady() {
  const size_t behind = queue_.bytes();
  if (behind > options_.max_pending_bytes) {
    EndStalled(fmt::format("is {} bytes behind, at most {} are allowed", behind,
                           options_.max_pending_bytes));
  }
  Pump();
}

void StreamWriter::Pump() {
  // gRPC may call OnDone() on another thread as soon as Finish is called.
  const std::shared_ptr<StreamWriter> keep_alive = shared_from_this();
  bool write = false;
  const Tokenizer* tokenizer = nullptr;
  absl::Status end;
  {
    MutexLock lock(&mutex_);
    if (write_in_flight_ || finish_called_) return;
    write = queue_.Pop(&event_);
    if (write) {
      write_in_flight_ = true;
      write_started_ = parts_.clock->Now();
      if (model_ != nullptr) tokenizer = model_->tokenizer;
    } else if (final_status_ && !finish_held_) {
      finish_called_ = true;
      end = EndStatus();
    } else {
      return;
    }
  }
  if (write) {
    ToProto(event_, request_id(), tokenizer, message_.get());
    grpc::ByteBuffer bytes = SerializeMessage(*message_);
    write_buffer_.Swap(&bytes);  // assigning would copy
    StartWrite(&write_buffer_);
  } else {
    RecordEnd(end);
    Finish(ToGrpcStatus(end));
  }
}

absl::Status StreamWriter::EndStatus() const {
  if (final_status_->ok() && client_gone_) return CancelReason();
  return *final_status_;
}

void StreamWriter::RecordEnd(const absl::Status& status) const {
  parts_.metrics->requests_total(status.code()).Increment();
  LogRequest(LogLevel::kInfo, request_id(), "{} after {:.3f} s{}{}", StatusCodeName(status.code()),
             absl::ToDoubleSeconds(parts_.clock->Now() - options_.arrival), status.ok() ? "" : ": ",
             std::string(status.message()));
}

// A client gives up a little before the deadline that the server sees: gRPC rounds the timeout up
// (by up to 1 %) when it sends it.
absl::Status StreamWriter::CancelReason() const {
  if (options_.deadline != absl::InfiniteFuture()) {
    const absl::Duration slack =
        absl::Milliseconds(10) + (options_.deadline - options_.arrival) * 0.02;
    if (parts_.clock->Now() >= options_.deadline - slack) {
      return absl::DeadlineExceededError("the call's deadline passed");
    }
  }
  return absl::CancelledError("the client cancelled the call");
}

}  // namespace tokenbutler
