#include "base/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace tokenbutler {

absl::Status MakeStatus(absl::StatusCode code, fmt::string_view format, fmt::format_args args) {
  return absl::Status(code, fmt::vformat(format, args));
}

absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         fmt::format("{}: {}", prefix, std::string(status.message())));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace tokenbutler
