#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tokenbutler {

// Checks of single request fields. Each failure is INVALID_ARGUMENT (or what the name says) whose
// message gives field, value and bound, and whose details name the field.

absl::Status CheckInt(std::string_view field, int64_t value, int64_t low, int64_t high);

// NaN and infinities are out of every range.
absl::Status CheckInClosedRange(std::string_view field, double value, double low, double high);
// (low, high]
absl::Status CheckInHalfOpenRange(std::string_view field, double value, double low, double high);

// `bytes` is how long the field is.
absl::Status CheckBytes(std::string_view field, size_t bytes, size_t low, size_t high);
// `count` is how many entries the field has.
absl::Status CheckCount(std::string_view field, size_t count, size_t low, size_t high);

// 0 <= id < vocab_size.
absl::Status CheckTokenId(std::string_view field, int64_t id, int vocab_size);

// 1 to 128 characters of [A-Za-z0-9._:-].
absl::Status CheckRequestId(std::string_view field, std::string_view id);

// A name that is none of what the field may say.
absl::Status BadChoice(std::string_view field, std::string_view value, std::string_view choices);

// A known field that this server does not support. UNIMPLEMENTED.
absl::Status Unsupported(std::string_view field, std::string_view value, std::string_view bound);

// `text` for a message: in quotes, control characters escaped, cut after 64 bytes.
std::string Quoted(std::string_view text);

}  // namespace tokenbutler
