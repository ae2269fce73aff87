#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/predictor/fingerprint.h"
#include "engine/predictor/predictor.h"

namespace tokenbutler {

// Where predictors are looked for, and which of them may be taken.
struct PredictorSearch {
  std::string folder = "";
  // Unset: kLookahead before kTokenButler. Never kPca.
  std::optional<PredictorKind> kind = std::nullopt;
  // Also those of the model's architecture that do not know its files; after those that do.
  bool unchecked = false;
};

struct FoundPredictor {
  std::string path;
  Predictor predictor;
  bool knows_model = false;         // by the digest of its files
  std::vector<std::string> others;  // that would have done, too, the next best first
};

// The predictor for a model among the .safetensors files of a folder: of those that were validated
// with the model's files the best one by kind, and among these the first by name. Files that cannot
// be read as predictors are passed over with a warning in the log. `digest`, the digest of the
// model's files, is asked for when some file is for the model's architecture, and only then.
// NOT_FOUND with the reason when there is none, or no such folder; errors of `digest`.
absl::StatusOr<FoundPredictor> FindPredictor(
    const PredictorSearch& search, const ModelFingerprint& model,
    const std::function<absl::StatusOr<std::string>()>& digest);

// share/tokenbutler/predictors beside or above the folder of this program: where the build and an
// installation put the predictors of the source tree. Empty: there is none.
std::string DefaultPredictorFolder();
// The same for a program of that path.
std::string PredictorFolderOf(const std::string& program);

}  // namespace tokenbutler
