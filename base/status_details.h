#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "base/status.h"

namespace tokenbutler {

// Machine-readable details that ride on an absl::Status as payloads, so that the layers below
// server/ can give them without knowing protobuf. server/grpc_status turns them into google.rpc
// RetryInfo and BadRequest.

// `status` with the advice to try again after `delay` (rounded to milliseconds, at least 1 ms).
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);
// The advice of WithRetryDelay; nullopt: trying again is useless.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// `status` naming the request field that is at fault, as a path: "sampling.logit_bias[17]".
absl::Status WithField(absl::Status status, std::string_view field);
// The path of WithField; nullopt when there is none.
std::optional<std::string> FaultyField(const absl::Status& status);

}  // namespace tokenbutler
