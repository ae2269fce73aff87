#pragma once

#include <string>

#include "absl/types/span.h"
#include "base/status.h"

namespace tokenbutler {

// Writes a new file beside `path` that then takes its place,
// and waits until the disk has it: whatever happens, `path` is the old file or the new one, whole.
// RESOURCE_EXHAUSTED when the disk is full or a quota is reached, UNAVAILABLE with the system's
// reason otherwise; what was written of the new file is removed.
absl::Status WriteFileDurably(const std::string& path, absl::Span<const char> bytes);

}  // namespace tokenbutler
