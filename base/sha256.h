#pragma once

#include <cstddef>
#include <string>

#include "absl/types/span.h"

namespace tokenbutler {

// The SHA-256 digest of `bytes` (FIPS 180-4) as 64 lower-case hexadecimal digits, as sha256sum
// prints it. Any thread.
std::string Sha256Hex(absl::Span<const std::byte> bytes);

}  // namespace tokenbutler
