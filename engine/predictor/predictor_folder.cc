#include "engine/predictor/predictor_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/logging.h"
#include "engine/predictor/predictor_file.h"

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

struct Match {
  std::string path;
  Predictor predictor;
  bool knows_model = false;

  // Smaller is better.
  auto rank() const {
    return std::tuple(!knows_model, predictor.kind != PredictorKind::kLookahead, path);
  }
};

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder) {
  if (folder.empty()) {
    return NotFoundError("there is no folder share/tokenbutler/predictors beside this program");
  }
  std::error_code error;
  std::vector<std::string> paths;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    if (at->path().extension() == ".safetensors") paths.push_back(at->path().string());
  }
  if (error) return NotFoundError("{} cannot be read: {}", folder, error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The files' predictors for the architecture of `model`, whichever files they know.
std::vector<Match> OfArchitecture(const PredictorSearch& search, const ModelFingerprint& model,
                                  const std::vector<std::string>& paths) {
  std::vector<Match> matches;
  for (const std::string& path : paths) {
    absl::StatusOr<Predictor> predictor = ReadPredictor(path);
    if (!predictor.ok()) {
      LogWarning("passed over: {}", std::string(predictor.status().message()));
      continue;
    }
    const bool is_wanted = search.kind.has_value() ? predictor->kind == *search.kind
                                                   : predictor->kind != PredictorKind::kPca;
    if (!is_wanted || !CheckArchitecture(*predictor, model).ok()) continue;
    matches.push_back({.path = path, .predictor = *std::move(predictor)});
  }
  return matches;
}

}  // namespace

absl::StatusOr<FoundPredictor> FindPredictor(
    const PredictorSearch& search, const ModelFingerprint& model,
    const std::function<absl::StatusOr<std::string>()>& digest) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, FilesOf(search.folder));
  std::vector<Match> matches = OfArchitecture(search, model, paths);
  const std::string kind =
      search.kind.has_value() ? fmt::format(" of kind {}", PredictorKindName(*search.kind)) : "";
  if (matches.empty()) {
    return NotFoundError(
        "none of the {} files in {} is a predictor{} for this model's architecture", paths.size(),
        search.folder, kind);
  }
  ASSIGN_OR_RETURN(const std::string model_digest, digest());
  for (Match& match : matches) {
    const std::vector<std::string>& known = match.predictor.model_sha256;
    match.knows_model = std::find(known.begin(), known.end(), model_digest) != known.end();
  }
  const size_t num_matches = matches.size();
  if (!search.unchecked) std::erase_if(matches, [](const Match& m) { return !m.knows_model; });
  if (matches.empty()) {
    return NotFoundError(
        "{} holds {} predictor(s){} for this model's architecture, but none validated with its "
        "files, whose SHA-256 is {} (--predictor-unchecked uses the best all the same)",
        search.folder, num_matches, kind, model_digest);
  }
  std::sort(matches.begin(), matches.end(),
            [](const Match& a, const Match& b) { return a.rank() < b.rank(); });
  FoundPredictor found = {.path = matches.front().path,
                          .predictor = std::move(matches.front().predictor),
                          .knows_model = matches.front().knows_model,
                          .others = {}};
  for (size_t i = 1; i < matches.size(); ++i) found.others.push_back(matches[i].path);
  return found;
}

std::string PredictorFolderOf(const std::string& program) {
  std::error_code error;
  const fs::path place = "share/tokenbutler/predictors";
  fs::path folder = fs::path(program).parent_path();
  // bin/ of an installation is one below its share/; a build's programs are up to two below.
  for (int up = 0; up < 3 && !folder.empty(); ++up, folder = folder.parent_path()) {
    if (fs::is_directory(folder / place, error)) return (folder / place).string();
  }
  return "";
}

std::string DefaultPredictorFolder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? "" : PredictorFolderOf(program.string());
}

}  // namespace tokenbutler
