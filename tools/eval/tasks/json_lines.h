#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {

// The objects of a .jsonl file, one a line, or of a file that is one JSON list of them. NOT_FOUND,
// or INVALID_ARGUMENT naming the line.
absl::StatusOr<std::vector<nlohmann::json>> ReadJsonLines(const std::string& path);

}  // namespace tokenbutler
