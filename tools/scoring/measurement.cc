#include "tools/scoring/measurement.h"

#include <csignal>
#include <fstream>

#include "CLI/CLI.hpp"
#include "base/cpu_features.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

// Rows of earlier runs come from files; one that is not as this program writes them throws where it
// is used.
absl::StatusOr<Report> Run(const Measurement& measurement, ComputePool& pool) {
  try {
    return measurement(pool);
  } catch (const Report::Json::exception& error) {
    return InvalidArgumentError("results of an earlier run are damaged: {}", error.what());
  }
}

absl::Status MeasureAndReport(const Measurement& measurement, const MeasurementFlags& flags) {
  if (!flags.output.empty()) {  // before hours are spent
    if (!std::ofstream(flags.output, std::ios::app)) {
      return InternalError("--output {} cannot be written", flags.output);
    }
  }
  ComputePool pool(flags.threads);
  ASSIGN_OR_RETURN(Report report, Run(measurement, pool));
  for (const std::string& fact : flags.facts) {
    const size_t equals = fact.find('=');
    const std::string name = fact.substr(0, equals);
    if (report.has_fact(name)) return InvalidArgumentError("--fact {} is measured already", name);
    report.SetFact(name, fact.substr(equals + 1));
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
      ->take_all()
      ->check([](const std::string& fact) {
        const size_t equals = fact.find('=');
        return equals == 0 || equals == std::string::npos ? "'" + fact + "' must be NAME=VALUE"
                                                          : std::string();
      });
}

int Measure(const Measurement& measurement, const MeasurementFlags& flags,
            const std::string& program) {
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on files is an error of writing, like a full disk
  const absl::Status status = MeasureAndReport(measurement, flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}: {}\n", program, std::string(status.message()));
  return 1;
}

}  // namespace tokenbutler
