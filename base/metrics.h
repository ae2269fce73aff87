#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace tokenbutler {

// What build_info says; known when the process starts.
struct BuildLabels {
  std::string version;  // of TokenButler
  std::string torch;    // of LibTorch
  std::string cuda;     // "none" in a CPU build
  std::string isa;      // what the kernels run with: "avx2", "avx512", ...
};

// Owns the registry and one named member per metric; all series exist from construction, with the
// prefix tokenbutler_ in front of the member's name. Label values come from this file only, never
// from requests. Members may be used from any thread.
//
// The comment of each group says which part records it. "Request" here is one Generate call;
// a request with n > 1 counts once as a request and n times as finished.
class Metrics {
 private:
  // Declared first: every member below is registered in it while they are initialised.
  std::shared_ptr<prometheus::Registry> registry_;

 public:
  explicit Metrics(const BuildLabels& build);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

  // --- Recorded by server/ ---
  // Generate calls by the status code that the client got (or would have got, had it stayed).
  prometheus::Counter& requests_total(absl::StatusCode code) {
    return *requests_total_[static_cast<size_t>(code) % requests_total_.size()];
  }
  prometheus::Gauge& requests_preparing;  // being tokenised, or waiting for it
  prometheus::Gauge& open_streams;        // Generate calls that gRPC has not let go of
  prometheus::Counter& slow_reader_aborts_total;
  prometheus::Histogram& request_prepare_seconds;  // chat template and tokenisation, wait included

  // --- Recorded by the engine ---
  prometheus::Gauge& requests_running;  // sequences' requests in prefill or decode
  prometheus::Gauge& requests_waiting;  // accepted, in the queue

  // Outputs that reached their end, one per index that got OnFinished.
  struct FinishedTotal {
    prometheus::Counter& eos;
    prometheus::Counter& stop_string;
    prometheus::Counter& stop_token;
    prometheus::Counter& length;
    prometheus::Counter& context_length;
    prometheus::Counter& cancelled;
  };
  FinishedTotal finished_total;

  prometheus::Counter& prompt_tokens_total;         // of requests whose prefill was completed
  prometheus::Counter& prompt_tokens_cached_total;  // of those, not computed anew
  prometheus::Counter& generation_tokens_total;     // sampled, whether sent or held back

  prometheus::Histogram& time_to_first_token_seconds;  // arrival -> first sampled token
  prometheus::Histogram& inter_token_latency_seconds;  // between two sampled tokens of one index
  prometheus::Histogram& e2e_request_latency_seconds;  // arrival -> OnDone(OK)
  prometheus::Histogram& request_queue_seconds;        // arrival -> first prefill chunk
  prometheus::Histogram& request_prefill_seconds;      // first chunk -> first sampled token
  prometheus::Histogram& request_decode_seconds;       // first sampled token -> last

  // Requests that ended because their deadline passed, by where it found them. `prepare` is the
  // server's (before Engine::Submit), the others are the engine's, whether its own check or
  // Engine::Abort with DEADLINE_EXCEEDED came first.
  struct DeadlineExpiredTotal {
    prometheus::Counter& prepare;
    prometheus::Counter& queue;
    prometheus::Counter& prefill;
    prometheus::Counter& decode;
  };
  DeadlineExpiredTotal deadline_expired_total;

  prometheus::Gauge& kv_host_used_bytes;
  prometheus::Gauge& kv_host_high_water_bytes;  // the most that was in use at a time
  prometheus::Gauge& kv_host_reserved_bytes;  // of the used: stand for what policies keep elsewhere
  prometheus::Gauge& kv_host_capacity_bytes;
  prometheus::Gauge& kv_host_pinned_bytes;
  prometheus::Counter& kv_host_alloc_failures_total;  // a block was wanted and none was free
  prometheus::Gauge& kv_device_used_bytes;            // 0 when the device is the host

  // --- Sparse attention, recorded by the engine: counters as sequences go on, histograms once per
  // decode step of a sequence. Dense sequences leave no trace here. ---

  // Bytes that crossed the link between host and device, by direction and purpose.
  struct KvTransferBytesTotal {
    prometheus::Counter& fetch;       // host to device, when a layer asked
    prometheus::Counter& prefetch;    // host to device, before it asked
    prometheus::Counter& write_back;  // device to host
  };
  KvTransferBytesTotal kv_transfer_bytes_total;
  prometheus::Histogram& kv_transfer_seconds;  // spent by the transfers of a step
  prometheus::Counter& hot_buffer_lookups_total;
  prometheus::Counter& hot_buffer_hits_total;
  prometheus::Counter& prefetch_issued_total;
  prometheus::Counter& prefetch_late_total;
  prometheus::Histogram& decode_stall_seconds;    // a step waited for transfers
  prometheus::Histogram& predictor_seconds;       // a step spent on choosing tokens
  prometheus::Histogram& selected_tokens;         // attended per layer and KV head, mean of a step
  prometheus::Histogram& attended_ratio;          // the same as a share of the context
  prometheus::Histogram& selection_recall_ratio;  // at probes: attention mass that was selected

  // Layers of decode steps in which a sparse sequence attended to everything.
  struct DenseFallbackTotal {
    prometheus::Counter& short_context;
    prometheus::Counter& dense_layer;
    prometheus::Counter& window;
  };
  DenseFallbackTotal dense_fallback_total;

 private:
  std::array<prometheus::Counter*, 17> requests_total_;  // by absl::StatusCode, kOk .. last
};

}  // namespace tokenbutler
