#include "server/field_check.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "base/status_details.h"

namespace tokenbutler {
namespace {

template <typename... Args>
absl::Status Fault(std::string_view field, fmt::format_string<Args...> format, Args&&... args) {
  return WithField(
      InvalidArgumentError("{} {}", field, fmt::format(format, std::forward<Args>(args)...)),
      field);
}

bool IsRequestIdChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == ':' || c == '-';
}

}  // namespace

absl::Status CheckInt(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Fault(field, "is {}, must be in [{}, {}]", value, low, high);
}

absl::Status CheckInClosedRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Fault(field, "is {:.6g}, must be in [{}, {}]", value, low, high);
}

absl::Status CheckInHalfOpenRange(std::string_view field, double value, double low, double high) {
  if (value > low && value <= high) return absl::OkStatus();
  return Fault(field, "is {:.6g}, must be in ({}, {}]", value, low, high);
}

absl::Status CheckBytes(std::string_view field, size_t bytes, size_t low, size_t high) {
  if (bytes >= low && bytes <= high) return absl::OkStatus();
  return Fault(field, "is {} bytes long, must be {} to {}", bytes, low, high);
}

absl::Status CheckCount(std::string_view field, size_t count, size_t low, size_t high) {
  if (count >= low && count <= high) return absl::OkStatus();
  return Fault(field, "has {} entries, must have {} to {}", count, low, high);
}

absl::Status CheckTokenId(std::string_view field, int64_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return Fault(field, "is token id {}, must be in [0, {}), the model's vocabulary", id, vocab_size);
}

absl::Status CheckRequestId(std::string_view field, std::string_view id) {
  RETURN_IF_ERROR(CheckBytes(field, id.size(), 1, 128));
  if (std::all_of(id.begin(), id.end(), IsRequestIdChar)) return absl::OkStatus();
  return Fault(field, "is {}, must be 1 to 128 characters of [A-Za-z0-9._:-]", Quoted(id));
}

absl::Status BadChoice(std::string_view field, std::string_view value, std::string_view choices) {
  return Fault(field, "is {}, must be one of {}", Quoted(value), choices);
}

absl::Status Unsupported(std::string_view field, std::string_view value, std::string_view bound) {
  return WithField(
      UnimplementedError("{} is {}, which this server does not support: {}", field, value, bound),
      field);
}

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  std::string_view shown = text.substr(0, kMaxBytes);
  // Do not cut a UTF-8 sequence in two.
  while (shown.size() < text.size() && !shown.empty() &&
         (static_cast<uint8_t>(text[shown.size()]) & 0xC0) == 0x80) {
    shown.remove_suffix(1);
  }
  return fmt::format("'{}{}'", absl::Utf8SafeCEscape(absl::string_view(shown.data(), shown.size())),
                     shown.size() < text.size() ? "..." : "");
}

}  // namespace tokenbutler
