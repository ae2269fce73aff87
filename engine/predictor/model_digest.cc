#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/sha256.h"
#include "engine/predictor/predictor_file.h"

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

// The files of a set that gguf-split wrote (name-00001-of-00003.gguf), else `path` alone.
std::vector<std::string> GgufFiles(const std::string& path) {
  constexpr std::string_view kExample = "-00001-of-00003.gguf";
  if (path.size() <= kExample.size()) return {path};
  const std::string stem = path.substr(0, path.size() - kExample.size());
  const std::string suffix = path.substr(stem.size());
  const int count = std::atoi(suffix.c_str() + 10);
  if (suffix.substr(6, 4) != "-of-" || count < 1 || count > 99999) return {path};
  std::vector<std::string> paths;
  for (int i = 1; i <= count; ++i) {
    paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", stem, i, count));
  }
  // Any other name with these characters is no set.
  return std::find(paths.begin(), paths.end(), path) == paths.end() ? std::vector{path} : paths;
}

absl::StatusOr<std::vector<std::string>> WeightFiles(const std::string& model_path) {
  std::error_code error;
  if (!fs::is_directory(model_path, error)) return GgufFiles(model_path);
  std::vector<std::string> paths;
  fs::directory_iterator at(model_path, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    if (at->path().extension() == ".safetensors") paths.push_back(at->path().string());
  }
  if (error) return UnavailableError("{} cannot be read: {}", model_path, error.message());
  if (paths.empty()) return NotFoundError("{} holds no .safetensors file", model_path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

absl::StatusOr<std::string> ModelDigest(const std::string& model_path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, WeightFiles(model_path));
  std::string listing, digest;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    digest = Sha256Hex(file.bytes());
    listing += fmt::format("{}  {}\n", digest, fs::path(path).filename().string());
  }
  if (paths.size() == 1) return digest;
  return Sha256Hex({reinterpret_cast<const std::byte*>(listing.data()), listing.size()});
}

}  // namespace tokenbutler
