#include "server/grpc_status.h"

#include <string>

#include "base/status_details.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/error_details.h"

namespace tokenbutler {
namespace {

void AddDetails(const absl::Status& status, google::rpc::Status* out) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(StatusCodeName(status.code())));
  info.set_domain("tokenbutler");
  out->add_details()->PackFrom(info);

  if (const auto field = FaultyField(status)) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(*field);
    violation->set_description(std::string(status.message()));
    out->add_details()->PackFrom(bad_request);
  }
  if (const auto delay = RetryDelay(status)) {
    google::rpc::RetryInfo retry;
    const int64_t ms = absl::ToInt64Milliseconds(*delay);
    retry.mutable_retry_delay()->set_seconds(ms / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(ms % 1000) * 1'000'000);
    out->add_details()->PackFrom(retry);
  }
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status rich;
  rich.set_code(static_cast<int>(status.code()));  // absl's codes are gRPC's
  rich.set_message(std::string(status.message()));
  AddDetails(status, &rich);
  grpc::Status converted;
  grpc::SetErrorDetails(rich, &converted);
  return converted;
}

std::string_view StatusCodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

}  // namespace tokenbutler
