#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "tools/train/corpus.h"
#include "tools/train/training_options.h"

namespace tokenbutler {

// What the command line of tokenbutler-train says.
struct TrainingFlags {
  std::string model;  // a .gguf file or a Hugging Face folder
  std::string dtype;  // "bfloat16", "float32"; empty: bf16 where the CPU has it
  int num_threads = 1;
  bool dry_run = false;
  bool restart = false;
  CorpusOptions corpus;
  TrainingOptions training;
};

// A command line: either flags, or (for --help) a text to print.
struct TrainingCommandLine {
  std::optional<TrainingFlags> flags;
  std::string text;
};

// INVALID_ARGUMENT naming flag, value and bound.
absl::StatusOr<TrainingCommandLine> ParseTrainingFlags(int argc, const char* const* argv);

}  // namespace tokenbutler
