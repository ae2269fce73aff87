#include "tools/cli/exit_code.h"

#include "fmt/format.h"
#include "server/grpc_status.h"

namespace tokenbutler {

ExitCode ReportError(const grpc::Status& status, const char* server) {
  if (status.ok()) return kExitOk;
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  fmt::print(stderr, "tokenbutler: {} from {}: {}\n", StatusCodeName(code), server,
             status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return kExitUnreachable;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return kExitDeadline;
    case grpc::StatusCode::CANCELLED:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

}  // namespace tokenbutler
