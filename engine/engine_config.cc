#include "engine/engine_config.h"

#include "base/status.h"

namespace tokenbutler {
namespace {

absl::Status AtLeast(const char* option, int64_t value, int64_t bound) {
  if (value >= bound) return absl::OkStatus();
  return InvalidArgumentError("{} is {}, must be at least {}", option, value, bound);
}

}  // namespace

absl::Status EngineConfig::Validate() const {
  RETURN_IF_ERROR(AtLeast("max_model_len", max_model_len, 0));
  RETURN_IF_ERROR(AtLeast("max_num_seqs", max_num_seqs, 1));
  RETURN_IF_ERROR(AtLeast("prefill_chunk_tokens", prefill_chunk_tokens, 1));
  RETURN_IF_ERROR(AtLeast("max_waiting_requests", max_waiting_requests, 1));
  RETURN_IF_ERROR(AtLeast("max_waiting_tokens", max_waiting_tokens, 1));
  if (max_queue_time <= absl::ZeroDuration()) {
    return InvalidArgumentError("max_queue_time is {}, must be positive",
                                absl::FormatDuration(max_queue_time));
  }
  if (priority_step < absl::ZeroDuration()) {
    return InvalidArgumentError("priority_step is {}, must not be negative",
                                absl::FormatDuration(priority_step));
  }
  return AtLeast("max_overtakes", max_overtakes, 0);
}

}  // namespace tokenbutler
