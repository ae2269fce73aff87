#include "tools/scoring/measurement.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "base/cpu_features.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

absl::Status MeasureAndReport(const Measurement& measurement, const MeasurementFlags& flags) {
  ComputePool pool(flags.threads);
  ASSIGN_OR_RETURN(Report report, measurement(pool));
  for (const std::string& fact : flags.facts) {
    const size_t equals = std::min(fact.find('='), fact.size());
    report.SetFact(fact.substr(0, equals), fact.substr(std::min(equals + 1, fact.size())));
  }
  fmt::print("{}", report.Table());
  return flags.output.empty() ? absl::OkStatus() : report.WriteJson(flags.output);
}

}  // namespace

void AddMeasurementFlags(CLI::App& app, MeasurementFlags* flags) {
  app.require_subcommand(1);
  app.fallthrough();  // common options may follow the subcommand
  flags->threads = DefaultNumThreads();
  app.add_option("--threads", flags->threads, "Threads, this one included")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--output", flags->output, "Also write the result as JSON to this file");
  app.add_option("--fact", flags->facts, "NAME=VALUE to note in the result: the commit, the date")
      ->take_all();
}

int Measure(const Measurement& measurement, const MeasurementFlags& flags,
            const std::string& program) {
  const absl::Status status = MeasureAndReport(measurement, flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}: {}\n", program, std::string(status.message()));
  return 1;
}

}  // namespace tokenbutler
