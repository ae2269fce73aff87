// tokenbutler-eval: what every policy costs in quality.

#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/cpu_features.h"
#include "fmt/format.h"
#include "tools/eval/commands.h"

namespace tokenbutler {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Compares policies by what they do to a model's predictions and answers.",
               "tokenbutler-eval");
  app.require_subcommand(1);
  app.fallthrough();  // common options may follow the subcommand
  app.set_version_flag("--version", TOKENBUTLER_VERSION);
  int threads = DefaultNumThreads();
  std::string output;
  std::vector<std::string> facts;
  app.add_option("--threads", threads, "Threads, this one included")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--output", output, "Also write the result as JSON to this file");
  app.add_option("--fact", facts, "NAME=VALUE to note in the result: the commit, the date")
      ->take_all();
  Evaluation evaluation;
  AddKl(app, &evaluation);
  AddCoref(app, &evaluation);
  AddRuler(app, &evaluation);
  AddLongBench(app, &evaluation);
  AddAime(app, &evaluation);
  CLI11_PARSE(app, argc, argv);

  ComputePool pool(threads);
  absl::StatusOr<Report> report = evaluation(pool);
  absl::Status status = report.status();
  if (status.ok()) {
    for (const std::string& fact : facts) {
      const size_t equals = std::min(fact.find('='), fact.size());
      report->SetFact(fact.substr(0, equals), fact.substr(std::min(equals + 1, fact.size())));
    }
    fmt::print("{}", report->Table());
    if (!output.empty()) status = report->WriteJson(output);
  }
  if (status.ok()) return 0;
  fmt::print(stderr, "tokenbutler-eval: {}\n", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
