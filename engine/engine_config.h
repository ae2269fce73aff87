#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tokenbutler {

// The engine's knobs; flags of the same names set them (server/server_config).
struct EngineConfig {
  // Longest sequence in tokens, prompt and completion together. 0: what the model declares.
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

  absl::Status Validate() const;
};

}  // namespace tokenbutler
