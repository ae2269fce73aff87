#pragma once

#include "tools/eval/eval_session.h"
#include "tools/scoring/measurement.h"

namespace CLI {
class App;
}

namespace tokenbutler {

// Each adds a subcommand; when it is called, *chosen runs it.
void AddKl(CLI::App& app, Measurement* chosen);
void AddCoref(CLI::App& app, Measurement* chosen);
void AddRuler(CLI::App& app, Measurement* chosen);
void AddLongBench(CLI::App& app, Measurement* chosen);
void AddAime(CLI::App& app, Measurement* chosen);

// What all subcommands have in common: the model, the settings, memory and probes. Not the lengths,
// which are the subcommands' own. `options` must outlive the parsing.
void AddEvalFlags(CLI::App* command, EvalOptions* options);

}  // namespace tokenbutler
