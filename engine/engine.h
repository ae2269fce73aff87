#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/engine_config.h"
#include "engine/request.h"
#include "engine/step_plan.h"
#include "engine/token_sink.h"
#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

class BlockPool;
class Clock;
class Metrics;

// A snapshot for GetLoad, admission and the metrics page.
struct EngineLoad {
  int requests_running = 0;
  int requests_waiting = 0;
  int64_t waiting_prompt_tokens = 0;
  int64_t kv_used_bytes = 0;
  int64_t kv_capacity_bytes = 0;
};

// Owns the engine thread and, on it, every sequence. The thread's loop is three calls: schedule,
// run, commit. Public methods may be called from any thread and never wait for a step.
class Engine {
 public:
  // What the engine works with; not owned, must outlive it.
  struct Parts {
    ModelRunner* runner = nullptr;
    const Tokenizer* tokenizer = nullptr;
    BlockPool* block_pool = nullptr;
    Clock* clock = nullptr;
    Metrics* metrics = nullptr;
  };

  // Starts the engine thread. INVALID_ARGUMENT naming the option when `config` is bad.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineConfig config, Parts parts);
  virtual ~Engine() = default;  // cancels what runs, joins the thread

  // Queues a request. After OK, `sink` receives OnDone exactly once, later, on the engine thread.
  // INVALID_ARGUMENT: prompt (or prompt + scored tokens) longer than max_model_len.
  // ALREADY_EXISTS: request_id is running. UNAVAILABLE: draining.
  // RESOURCE_EXHAUSTED: queue full (with RetryInfo: see RetryDelay in base/status_details.h), or the
  // request can never fit the KV capacity (no RetryInfo; names needed and total bytes).
  virtual absl::Status Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) = 0;

  // Ends a request wherever it is: queue, prefill or decode, before the next step. Every unfinished
  // index gets OnFinished(kCancelled) first if `reason` is OK, then OnDone(reason). False when no
  // such request runs (idempotent). May be called from inside a TokenSink method.
  virtual bool Abort(const std::string& request_id, absl::Status reason) = 0;

  virtual EngineLoad load() const = 0;

  // Refuses new requests from now on (UNAVAILABLE); running ones go on.
  virtual void StartDraining() = 0;
  // Waits until nothing runs or waits, or until `timeout`. True when idle.
  virtual bool WaitUntilIdle(absl::Duration timeout) = 0;
  // Ends everything that is left with `reason`.
  virtual void AbortAll(absl::Status reason) = 0;
};

}  // namespace tokenbutler
