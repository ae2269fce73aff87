#include "tools/train/corpus_manifest.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

// Adds "name version" of the manifest's packages of `part`; "": of all parts.
void AddPackages(const fs::path& manifest, const std::string& part, std::set<std::string>* found) {
  std::ifstream in(manifest);
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("packages") || !json["packages"].is_array()) return;
  const auto text = [](const nlohmann::json& object, const char* member) {
    const auto at = object.find(member);
    return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  for (const nlohmann::json& package : json["packages"]) {
    if (!package.is_object() || (!part.empty() && text(package, "part") != part)) continue;
    found->insert(fmt::format("{} {}", text(package, "package"), text(package, "version")));
  }
}

}  // namespace

std::string PackagesOf(const std::vector<std::string>& texts) {
  std::set<std::string> found;
  for (const std::string& text : texts) {
    std::error_code error;
    const fs::path folder = fs::canonical(text, error);
    if (error || !fs::is_directory(folder, error)) continue;
    AddPackages(folder / "manifest.json", "", &found);
    AddPackages(folder.parent_path() / "manifest.json", folder.filename().string(), &found);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace tokenbutler
