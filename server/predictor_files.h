#pragma once

#include <string>

#include "base/status.h"
#include "engine/models/model_config.h"
#include "engine/step_runner.h"

namespace tokenbutler {

// Files beside the model that token selection uses. Empty paths: none.
struct PredictorFiles {
  std::string predictor = "";  // --predictor
  bool unchecked = false;  // --predictor-unchecked: also for model files it was not validated with
  std::string directions = "";  // --pca-file
};

// Reads the files and sets what the runner takes of them. Errors start with the flag: those of
// ReadPredictor; FAILED_PRECONDITION when a file is for another architecture, or, unless
// `unchecked`, for other files of the model at `model_path` (which are then read whole).
absl::Status LoadPredictorFiles(const PredictorFiles& files, const std::string& model_path,
                                const ModelConfig& model, StepRunnerOptions* options);

}  // namespace tokenbutler
