#pragma once

#include <functional>

#include "base/compute_pool.h"
#include "base/status.h"
#include "tools/eval/eval_session.h"
#include "tools/scoring/report.h"

namespace CLI {
class App;
}

namespace tokenbutler {

using Evaluation = std::function<absl::StatusOr<Report>(ComputePool&)>;

// Each adds a subcommand; when it is called, *chosen runs it.
void AddKl(CLI::App& app, Evaluation* chosen);
void AddCoref(CLI::App& app, Evaluation* chosen);
void AddRuler(CLI::App& app, Evaluation* chosen);
void AddLongBench(CLI::App& app, Evaluation* chosen);
void AddAime(CLI::App& app, Evaluation* chosen);

// What all subcommands have in common: the model, the settings, memory and probes. Not the lengths,
// which are the subcommands' own. `options` must outlive the parsing.
void AddEvalFlags(CLI::App* command, EvalOptions* options);

}  // namespace tokenbutler
