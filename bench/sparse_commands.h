#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "bench/benchmarks.h"

namespace tokenbutler {

using Benchmark = std::function<absl::StatusOr<Report>(ComputePool&)>;

// Each adds a subcommand about sparse decoding; when it is called, *chosen runs it.
void AddDecode(CLI::App& app, Benchmark* chosen);
void AddLink(CLI::App& app, Benchmark* chosen);

}  // namespace tokenbutler
