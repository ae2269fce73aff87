#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "tools/scoring/report.h"

namespace CLI {
class App;
}

namespace tokenbutler {

// One measurement of a program that has several, each a subcommand that sets it.
using Measurement = std::function<absl::StatusOr<Report>(ComputePool&)>;

// What all measurements of a program have in common: --threads, --output, --fact.
struct MeasurementFlags {
  int threads = 1;
  std::string output;              // file for the result as JSON; "": none
  std::vector<std::string> facts;  // NAME=VALUE
};

// `app` gets the flags and requires a subcommand. `flags` must outlive the parsing.
void AddMeasurementFlags(CLI::App& app, MeasurementFlags* flags);

// Runs the measurement, prints its table and writes its result, or says what went wrong. Returns
// the program's exit code: 0 or 1.
int Measure(const Measurement& measurement, const MeasurementFlags& flags,
            const std::string& program);

}  // namespace tokenbutler
