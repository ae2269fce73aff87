#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/engine_config.h"
#include "engine/request.h"
#include "engine/step_plan.h"
#include "engine/token_sink.h"
#include "engine/tokenizer/tokenizer.h"
#include "offload/block_table.h"

namespace tokenbutler {

class BlockPool;
class Clock;
class ComputePool;
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
    // Shares the sampling of many sequences among threads; null: all on the engine thread. May be
    // the runner's own: the engine uses it between steps only.
    ComputePool* compute_pool = nullptr;
  };

  // Starts the engine thread. INVALID_ARGUMENT naming the option when `config` is bad;
  // max_model_len must be set.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineConfig config, Parts parts);

  // Shuts down, in this order: refuses new requests (UNAVAILABLE); ends what waits and runs with
  // CANCELLED, each sink getting its OnDone on the engine thread; joins the thread. Sinks may
  // outlive the engine. REQUIRES: no other method is being called.
  virtual ~Engine() = default;

  // Queues a request. After OK, `sink` receives OnDone exactly once, later, on the engine thread.
  // INVALID_ARGUMENT: prompt (or prompt + scored tokens) longer than max_model_len, a token id
  // outside the vocabulary, sampling parameters that the Sampler refuses.
  // ALREADY_EXISTS: request_id is running, or another prompt is held by hold.name. NOT_FOUND: no
  // prompt is held by the name that it continues. UNAVAILABLE: draining.
  // RESOURCE_EXHAUSTED: queue full (with RetryInfo: see RetryDelay in base/status_details.h), or
  // the request can never fit the KV capacity (no RetryInfo; names needed and total bytes).
  virtual absl::Status Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) = 0;

  // Ends a request wherever it is: queue, prefill or decode, before the next step. Every unfinished
  // index gets OnFinished(kCancelled) first if `reason` is OK, then OnDone(reason). False when no
  // such request runs (idempotent); the first reason counts. May be called from inside a TokenSink
  // method: what the step in progress has for the request may still come, then its end.
  virtual bool Abort(const std::string& request_id, absl::Status reason) = 0;

  // Lets go of a held prompt: its name is free at once, its blocks when the requests that continue
  // it are over. False: none is held by that name.
  virtual bool DropPrompt(const std::string& name) = 0;
  // The blocks of a held prompt, for saving its rows (PromptRows), which do not change while it is
  // held. NOT_FOUND: there is none.
  virtual absl::StatusOr<BlockTable> HeldBlocks(const std::string& name) const = 0;

  virtual EngineLoad load() const = 0;

  // Refuses new requests from now on (UNAVAILABLE); running ones go on.
  virtual void StartDraining() = 0;
  // Waits until every accepted request's OnDone has returned, or until `timeout`. True when idle.
  virtual bool WaitUntilIdle(absl::Duration timeout) = 0;
  // Ends everything that is left with `reason`, as Abort does.
  virtual void AbortAll(absl::Status reason) = 0;
};

}  // namespace tokenbutler
