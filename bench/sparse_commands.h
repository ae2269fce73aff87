#pragma once

#include "CLI/CLI.hpp"
#include "tools/scoring/measurement.h"

namespace tokenbutler {

// Each adds a subcommand about sparse decoding; when it is called, *chosen runs it.
void AddDecode(CLI::App& app, Measurement* chosen);
void AddLink(CLI::App& app, Measurement* chosen);

}  // namespace tokenbutler
