#include "server/predictor_files.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <system_error>
#include <utility>

#include "base/logging.h"
#include "engine/models/rope.h"
#include "engine/predictor/predictor_file.h"
#include "engine/predictor/predictor_folder.h"

namespace tokenbutler {
namespace {

using Digest = std::function<absl::StatusOr<std::string>()>;

// The digest of the files at a path, found when it is first asked for.
Digest DigestOnce(const std::string& model_path) {
  return [model_path, digest = std::optional<absl::StatusOr<std::string>>()]() mutable {
    if (!digest.has_value()) digest = ModelDigest(model_path);
    return *digest;
  };
}

absl::StatusOr<std::shared_ptr<const Predictor>> Load(const std::string& path, bool wants_pca,
                                                      bool unchecked, const ModelFingerprint& model,
                                                      const Digest& digest) {
  ASSIGN_OR_RETURN(Predictor predictor, ReadPredictor(path));
  if ((predictor.kind == PredictorKind::kPca) != wants_pca) {
    return InvalidArgumentError("{}: kind is \"{}\", must be {}", path,
                                PredictorKindName(predictor.kind),
                                wants_pca ? "pca" : "tokenbutler or lookahead");
  }
  const absl::Status fits = CheckPredictorFits(predictor, model, digest, unchecked);
  if (!fits.ok()) return Annotate(fits, path);
  return std::make_shared<const Predictor>(std::move(predictor));
}

PredictorInUse None(std::string reason, StepRunnerOptions* options) {
  options->no_predictor = reason;
  return {.path = "", .kind = "", .reason = std::move(reason)};
}

absl::StatusOr<PredictorInUse> Named(const PredictorFiles& files, const ModelFingerprint& model,
                                     const Digest& digest, StepRunnerOptions* options) {
  auto predictor = Load(files.predictor, false, files.unchecked, model, digest);
  if (!predictor.ok()) return Annotate(predictor.status(), "--predictor");
  options->predictor = *std::move(predictor);
  return PredictorInUse{.path = files.predictor,
                        .kind = std::string(PredictorKindName(options->predictor->kind)),
                        .reason = files.unchecked
                                      ? "--predictor names it; the model's files were not compared"
                                      : "--predictor names it, and it knows the model's files"};
}

absl::StatusOr<PredictorInUse> Found(const PredictorFiles& files, const ModelFingerprint& model,
                                     const Digest& digest, StepRunnerOptions* options) {
  PredictorSearch search = {
      .folder = files.folder, .kind = files.kind, .unchecked = files.unchecked};
  if (search.folder == "none") return None("--predictor-dir is none", options);
  if (search.folder == "auto") {
    search.folder = DefaultPredictorFolder();
    if (search.folder.empty()) {
      return None(
          "there is no share/tokenbutler/predictors beside the program, and neither "
          "--predictor nor --predictor-dir says where one is",
          options);
    }
  } else if (std::error_code error; !std::filesystem::is_directory(search.folder, error)) {
    return NotFoundError("--predictor-dir: {} is not a folder", search.folder);
  }
  absl::StatusOr<FoundPredictor> found = FindPredictor(search, model, digest);
  if (absl::IsNotFound(found.status())) {
    return None(std::string(found.status().message()), options);
  }
  if (!found.ok()) return Annotate(found.status(), "--predictor-dir");
  std::string reason = found->knows_model ? "found by the digest of the model's files"
                                          : "found by the model's architecture; it does not know "
                                            "the model's files (--predictor-unchecked)";
  if (!found->others.empty()) {
    reason += fmt::format("; it goes before {}", fmt::join(found->others, ", "));
  }
  options->predictor = std::make_shared<const Predictor>(std::move(found->predictor));
  return PredictorInUse{.path = found->path,
                        .kind = std::string(PredictorKindName(options->predictor->kind)),
                        .reason = std::move(reason)};
}

}  // namespace

absl::StatusOr<PredictorInUse> LoadPredictorFiles(const PredictorFiles& files,
                                                  const std::string& model_path,
                                                  const ModelConfig& model,
                                                  StepRunnerOptions* options) {
  ASSIGN_OR_RETURN(const Rope rope, Rope::Create(model.rope, model.head_dim, model.max_position));
  const ModelFingerprint fingerprint = FingerprintOf(model, rope);
  const Digest digest = DigestOnce(model_path);
  ASSIGN_OR_RETURN(PredictorInUse in_use, files.predictor.empty()
                                              ? Found(files, fingerprint, digest, options)
                                              : Named(files, fingerprint, digest, options));
  if (in_use.path.empty()) {
    LogInfo("no predictor: {}", in_use.reason);
  } else {
    LogInfo("predictor {}: kind {}, {}", in_use.path, in_use.kind, in_use.reason);
  }
  if (!files.directions.empty()) {
    auto directions = Load(files.directions, true, files.unchecked, fingerprint, digest);
    if (!directions.ok()) return Annotate(directions.status(), "--pca-file");
    options->pca = *std::move(directions);
    LogInfo("directions {}: {} dimensions", files.directions, options->pca->projected_dim);
  }
  return in_use;
}

}  // namespace tokenbutler
