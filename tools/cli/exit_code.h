#pragma once

#include "grpcpp/support/status.h"

namespace tokenbutler {

// What the program ends with; documented in --help and docs/operations.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,        // the server answered with an error, or is not ready
  kExitUsage = 2,         // the command line is wrong
  kExitUnreachable = 3,   // no answer: UNAVAILABLE
  kExitDeadline = 4,      // --timeout passed
  kExitInterrupted = 130  // Ctrl-C
};

// Prints the server's words to standard error and gives the exit code for them. `server` is the
// address, for the sentence about an unreachable one.
ExitCode ReportError(const grpc::Status& status, const char* server);

}  // namespace tokenbutler
