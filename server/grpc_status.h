#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace tokenbutler {

// The one conversion of our errors to gRPC's: same code and message, with the details of
// base/status_details.h as google.rpc messages in a google.rpc.Status (trailer
// "grpc-status-details-bin"): BadRequest when a field is at fault, RetryInfo when trying again
// makes sense, and always ErrorInfo {reason: the code's name, domain: "tokenbutler"}.
grpc::Status ToGrpcStatus(const absl::Status& status);

// "OK", "INVALID_ARGUMENT", ...
std::string_view StatusCodeName(absl::StatusCode code);

}  // namespace tokenbutler
