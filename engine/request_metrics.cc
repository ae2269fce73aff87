#include "engine/request_metrics.h"

#include <algorithm>

namespace tokenbutler {
namespace {

void CountExpired(RequestState::Stage stage, Metrics::DeadlineExpiredTotal* total) {
  switch (stage) {
    case RequestState::Stage::kQueued:
      return total->queue.Increment();
    case RequestState::Stage::kPrefill:
      return total->prefill.Increment();
    case RequestState::Stage::kDecode:
      return total->decode.Increment();
  }
}

}  // namespace

void CountFinished(FinishReason reason, Metrics* metrics) {
  Metrics::FinishedTotal& total = metrics->finished_total;
  switch (reason) {
    case FinishReason::kEos:
      return total.eos.Increment();
    case FinishReason::kStopString:
      return total.stop_string.Increment();
    case FinishReason::kStopToken:
      return total.stop_token.Increment();
    case FinishReason::kLength:
      return total.length.Increment();
    case FinishReason::kContextLength:
      return total.context_length.Increment();
    case FinishReason::kCancelled:
      return total.cancelled.Increment();
  }
}

void RecordEnd(const RequestState& request, const absl::Status& status, absl::Time now,
               Metrics* metrics) {
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    CountExpired(request.stage, &metrics->deadline_expired_total);
  }
  if (!status.ok()) return;
  metrics->e2e_request_latency_seconds.Observe(absl::ToDoubleSeconds(now - request.arrival));
  if (request.first_token_time == absl::InfinitePast()) return;
  absl::Time last = request.first_token_time;
  for (const Sequence& sequence : request.sequences) {
    if (sequence.num_new_tokens > 0) last = std::max(last, sequence.last_token_time);
  }
  metrics->request_decode_seconds.Observe(absl::ToDoubleSeconds(last - request.first_token_time));
}

}  // namespace tokenbutler
