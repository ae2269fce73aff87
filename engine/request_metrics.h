#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/metrics.h"
#include "engine/sequence.h"
#include "engine/token_sink.h"

namespace tokenbutler {

// What the metrics are told of requests and their sequences when these are over. Any thread.

void CountFinished(FinishReason reason, Metrics* metrics);

// A request that is over with `status`, as of `now`: how long it took when all went well, else
// whether its deadline passed, and where it was then.
void RecordEnd(const RequestState& request, const absl::Status& status, absl::Time now,
               Metrics* metrics);

}  // namespace tokenbutler
