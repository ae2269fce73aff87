#include "server/predictor_files.h"

#include <memory>
#include <utility>

#include "base/logging.h"
#include "engine/models/rope.h"
#include "engine/predictor/predictor_file.h"

namespace tokenbutler {
namespace {

absl::StatusOr<std::shared_ptr<const Predictor>> Load(const std::string& path, bool wants_pca,
                                                      bool unchecked, const std::string& model_path,
                                                      const ModelFingerprint& model) {
  ASSIGN_OR_RETURN(Predictor predictor, ReadPredictor(path));
  if ((predictor.kind == PredictorKind::kPca) != wants_pca) {
    return InvalidArgumentError("{}: kind is \"{}\", must be {}", path,
                                PredictorKindName(predictor.kind),
                                wants_pca ? "pca" : "tokenbutler or lookahead");
  }
  absl::Status fits = CheckPredictorFits(
      predictor, model, [&] { return ModelDigest(model_path); }, unchecked);
  if (!fits.ok()) return Annotate(fits, path);
  LogInfo("predictor {}: kind {}, {} dimensions{}", path, PredictorKindName(predictor.kind),
          predictor.projected_dim, unchecked ? ", model files not compared" : "");
  return std::make_shared<const Predictor>(std::move(predictor));
}

}  // namespace

absl::Status LoadPredictorFiles(const PredictorFiles& files, const std::string& model_path,
                                const ModelConfig& model, StepRunnerOptions* options) {
  options->no_predictor = "the server was started without --predictor";
  if (files.predictor.empty() && files.directions.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Rope rope, Rope::Create(model.rope, model.head_dim, model.max_position));
  const ModelFingerprint fingerprint = FingerprintOf(model, rope);
  if (!files.predictor.empty()) {
    auto predictor = Load(files.predictor, false, files.unchecked, model_path, fingerprint);
    if (!predictor.ok()) return Annotate(predictor.status(), "--predictor");
    options->predictor = *std::move(predictor);
  }
  if (!files.directions.empty()) {
    auto directions = Load(files.directions, true, files.unchecked, model_path, fingerprint);
    if (!directions.ok()) return Annotate(directions.status(), "--pca-file");
    options->pca = *std::move(directions);
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
