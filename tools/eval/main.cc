// tokenbutler-eval: what every policy costs in quality.

#include "CLI/CLI.hpp"
#include "tools/eval/commands.h"
#include "tools/scoring/measurement.h"

namespace tokenbutler {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Compares policies by what they do to a model's predictions and answers.",
               "tokenbutler-eval");
  app.set_version_flag("--version", TOKENBUTLER_VERSION);
  MeasurementFlags flags;
  AddMeasurementFlags(app, &flags);
  Measurement evaluation;
  AddKl(app, &evaluation);
  AddCoref(app, &evaluation);
  AddRuler(app, &evaluation);
  AddLongBench(app, &evaluation);
  AddAime(app, &evaluation);
  CLI11_PARSE(app, argc, argv);
  return Measure(evaluation, flags, "tokenbutler-eval");
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
