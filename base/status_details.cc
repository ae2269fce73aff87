#include "base/status_details.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/cord.h"

namespace tokenbutler {
namespace {

constexpr char kRetryDelayUrl[] = "tokenbutler/retry-delay-ms";
constexpr char kFieldUrl[] = "tokenbutler/field";

std::optional<std::string> Payload(const absl::Status& status, const char* url) {
  auto payload = status.GetPayload(url);
  if (!payload) return std::nullopt;
  return std::string(*payload);
}

}  // namespace

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  const int64_t ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(delay));
  status.SetPayload(kRetryDelayUrl, absl::Cord(std::to_string(ms)));
  return status;
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const std::optional<std::string> text = Payload(status, kRetryDelayUrl);
  if (!text) return std::nullopt;
  int64_t ms = 0;
  std::from_chars(text->data(), text->data() + text->size(), ms);
  return absl::Milliseconds(ms);
}

absl::Status WithField(absl::Status status, std::string_view field) {
  status.SetPayload(kFieldUrl, absl::Cord(std::string(field)));
  return status;
}

std::optional<std::string> FaultyField(const absl::Status& status) {
  return Payload(status, kFieldUrl);
}

}  // namespace tokenbutler
