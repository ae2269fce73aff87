#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "engine/models/model_config.h"
#include "engine/predictor/predictor.h"
#include "engine/step_runner.h"
#include "server/predictor_in_use.h"

namespace tokenbutler {

// Files beside the model that token selection uses. Empty paths: none.
struct PredictorFiles {
  std::string predictor = "";  // --predictor; empty: the one that is found in `folder`
  bool unchecked = false;  // --predictor-unchecked: also for model files it was not validated with
  // --predictor-dir: where it is looked for; "auto": DefaultPredictorFolder(), "none": nowhere.
  std::string folder = "none";
  std::optional<PredictorKind> kind = std::nullopt;  // --predictor-kind, among those found
  std::string directions = "";                       // --pca-file
};

// Reads or finds the files and sets what the runner takes of them. Errors start with the flag:
// those of ReadPredictor; FAILED_PRECONDITION when a file is for another architecture, or, unless
// `unchecked`, for other files of the model at `model_path`; NOT_FOUND when a folder that was named
// is not there. That a folder holds no predictor for the model is no error. The model's files are
// read whole, once, when some file is for its architecture and `unchecked` does not settle it.
absl::StatusOr<PredictorInUse> LoadPredictorFiles(const PredictorFiles& files,
                                                  const std::string& model_path,
                                                  const ModelConfig& model,
                                                  StepRunnerOptions* options);

}  // namespace tokenbutler
