#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/token_sink.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/served_model.h"
#include "server/stream_queue.h"
#include "server/write_threads.h"

namespace tokenbutler {

namespace v1 {
class GenerateResponse;
}

// One open Generate call: gRPC's reactor on one side, the engine's TokenSink on the other.
//
// Events from the engine go into a queue of its own (server/stream_queue.h); one write is in flight
// at a time; Finish is called exactly once, after the queue is empty. Nothing here blocks. It lives
// until gRPC has called OnDone() and the engine and the write threads have let go of their
// pointers.
//
// Threads: TokenSink's methods on the engine thread, which leaves an event and never calls gRPC;
// WriteReady on a write thread, which does; reactions on gRPC's; the rest on any. No lock is held
// while gRPC or the engine is called, because both may call back at once.
class StreamWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public TokenSink,
                           public WritableStream,
                           public std::enable_shared_from_this<StreamWriter> {
 public:
  struct Options {
    std::string request_id;
    int num_completions = 1;  // sampling.n
    absl::Time arrival;
    absl::Time deadline = absl::InfiniteFuture();
    // A write that the client has not taken in for that long ends the call.
    absl::Duration stall_limit = absl::Seconds(30);
    // Bytes that may wait for a client (StreamQueue); one further behind is treated as stalled.
    size_t max_pending_bytes = size_t{16} << 20;
    // Called once, when gRPC has let go of the call.
    std::function<void(const std::string& request_id)> on_closed;
  };

  // Not owned; must outlive it.
  struct Parts {
    WriteThreads* write_threads = nullptr;
    Metrics* metrics = nullptr;
    const Clock* clock = nullptr;
  };

  // The result is returned to gRPC as the call's reactor.
  static std::shared_ptr<StreamWriter> Create(grpc::CallbackServerContext* context,
                                              const Parts& parts, Options options);

  ~StreamWriter() override;

  const std::string& request_id() const { return options_.request_id; }

  // Ends a call that has not reached the engine; does nothing when it has, or has ended.
  void EndBeforeEngine(absl::Status status);

  // True when there is no use in preparing the request any further.
  bool ended() const;

  // Hands the call to the engine, or ends it with the engine's refusal. `model` gives the engine
  // and the tokenizer.
  void SubmitTo(std::shared_ptr<const ServedModel> model, GenerationRequest request);

  // The Abort RPC: OnFinished(kCancelled) for every index, then OK.
  void Abort();
  // Ends the call with `reason`, wherever it is.
  void AbortWith(absl::Status reason);

  // Ends the call when its client has stopped reading. Called now and then.
  void CheckStall(absl::Time now);

  // TokenSink
  void OnProgress(const PrefillProgress& progress) override;
  void OnPromptLogprobs(std::vector<PositionLogprobs> logprobs) override;
  void OnLogits(int position, absl::Span<const float> logits) override;
  void OnChunk(const OutputChunk& chunk) override;
  void OnFinished(FinishedOutput output) override;
  void OnDone(absl::Status status) override;

  // WritableStream
  void WriteReady() override;

  // grpc::ServerWriteReactor
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Stage { kPreparing, kInEngine, kEnded };

  StreamWriter(grpc::CallbackServerContext* context, const Parts& parts, Options options);

  // After an event was queued: has it written, or the call ended that is too far behind.
  void Queued(bool within_bound) ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the next write or the finish, if it is time.
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);
  // What the call ends with: never OK for a client that left.
  absl::Status EndStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordEnd(const absl::Status& status) const;
  absl::Status CancelReason() const;
  void EndStalled(const std::string& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const Parts parts_;
  const Options options_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone()
  std::shared_ptr<StreamWriter> self_;          // until OnDone(): gRPC knows only a raw pointer

  StreamQueue queue_;

  mutable Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kPreparing;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);  // set in kInEngine
  // Why the engine is to end the request, when that was decided while it was being submitted.
  std::optional<absl::Status> abort_reason_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> final_status_ ABSL_GUARDED_BY(mutex_);
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_held_ ABSL_GUARDED_BY(mutex_) = false;  // while CheckStall uses context_
  bool finish_called_ ABSL_GUARDED_BY(mutex_) = false;
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be written any more
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time write_started_ ABSL_GUARDED_BY(mutex_);

  // Belong to whoever set write_in_flight_. The first two keep their memory from write to write.
  StreamEvent event_;
  const std::unique_ptr<v1::GenerateResponse> message_;
  grpc::ByteBuffer write_buffer_;
};

}  // namespace tokenbutler
