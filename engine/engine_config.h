#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tokenbutler {

// The engine's knobs; flags of the same names set them (server/server_config).
struct EngineConfig {
  // Longest sequence in tokens, prompt and completion together. 0: what the model declares; whoever
  // knows the model puts its number here before Engine::Create.
  int max_model_len = 0;
  // Sequences decoded together. Each costs its share of every step; more wait in the queue.
  int max_num_seqs = 64;
  // Tokens of prefill per step, and the boundaries of a prompt's chunks: decoders never wait longer
  // than one such chunk. Smaller: smoother decoding beside long prompts; larger: faster prefill.
  int prefill_chunk_tokens = 512;
  // Bounds of the queue; beyond them a request is refused with RESOURCE_EXHAUSTED + RetryInfo.
  int max_waiting_requests = 1024;
  int64_t max_waiting_tokens = int64_t{16} << 20;
  absl::Duration max_queue_time = absl::Minutes(10);
  // One step of a request's priority counts like this much waiting: in the queue it goes before
  // requests of one priority less that came up to this much earlier. Larger: stricter priorities,
  // and a longer time until an old request of low priority goes before a new one of high priority.
  absl::Duration priority_step = absl::Seconds(30);
  // How many later requests may be admitted before one that does not fit yet; after that everything
  // behind it waits until it fits. 0: strictly first come, first served.
  int max_overtakes = 32;

  // INVALID_ARGUMENT naming the option, its value and its bound.
  absl::Status Validate() const;
};

}  // namespace tokenbutler
