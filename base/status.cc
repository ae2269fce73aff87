#include "base/status.h"

namespace tokenbutler {

absl::Status MakeStatus(absl::StatusCode code, fmt::string_view format, fmt::format_args args) {
  return absl::Status(code, fmt::vformat(format, args));
}

absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", prefix,
                                                 std::string_view(status.message().data(),
                                                                  status.message().size())));
}

}  // namespace tokenbutler
