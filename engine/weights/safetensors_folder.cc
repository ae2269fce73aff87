#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/models/json_fields.h"
#include "engine/weights/safetensors.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
constexpr size_t kMaxShards = 4096;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !error;
}

// A shard must be a plain name in the model's own folder: an index must not open other files.
absl::Status CheckShardName(const std::string& shard) {
  const bool plain = shard.size() > kSuffix.size() && shard.size() <= 255 && shard.front() != '.' &&
                     shard.find('/') == std::string::npos &&
                     shard.find('\0') == std::string::npos &&
                     shard.compare(shard.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
  if (plain) return absl::OkStatus();
  return InvalidArgumentError(
      "weight_map names shard '{}', must be a plain file name that ends in "
      "{}",
      shard.substr(0, 255), kSuffix);
}

// Shard -> the tensors the index puts there.
using ShardMap = std::map<std::string, std::vector<std::string>>;

absl::StatusOr<ShardMap> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const JsonFields index, JsonFields::Open(path));
  const nlohmann::json* map = index.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return InvalidArgumentError("{}: weight_map is missing or not an object", path);
  }
  ShardMap shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return InvalidArgumentError("{}: weight_map['{}'] is a {}, wanted a string", path,
                                  tensor.substr(0, 255), shard.type_name());
    }
    const auto& name = shard.get_ref<const std::string&>();
    const absl::Status valid = CheckShardName(name);
    if (!valid.ok()) return Annotate(valid, path);
    shards[name].push_back(tensor);
  }
  if (shards.empty() || shards.size() > kMaxShards) {
    return InvalidArgumentError("{}: weight_map names {} shards, must name from 1 to {}", path,
                                shards.size(), kMaxShards);
  }
  return shards;
}

// The shard must hold exactly the tensors that the index puts there.
absl::Status CompareWithIndex(const std::string& shard, const SafetensorsFile& file,
                              const std::vector<std::string>& wanted) {
  for (const std::string& tensor : wanted) {
    if (file.FindTensor(tensor) == nullptr) {
      return NotFoundError("{}: tensor '{}' is missing, though the index puts it there", shard,
                           tensor.substr(0, 255));
    }
  }
  if (file.tensors().size() == wanted.size()) return absl::OkStatus();
  return InvalidArgumentError("{} holds {} tensors, but the index puts {} there", shard,
                              file.tensors().size(), wanted.size());
}

}  // namespace

absl::StatusOr<SafetensorsFolder> SafetensorsFolder::Open(const std::string& folder) {
  if (Exists(fmt::format("{}/{}", folder, kIndexFile))) return OpenSharded(folder);
  const std::string path = fmt::format("{}/{}", folder, kSingleFile);
  if (!Exists(path)) {
    return NotFoundError("{} holds neither {} nor {}", folder, kSingleFile, kIndexFile);
  }
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  SafetensorsFolder opened;
  opened.shards_.push_back(std::move(file));
  return opened;
}

absl::StatusOr<SafetensorsFolder> SafetensorsFolder::OpenSharded(const std::string& folder) {
  ASSIGN_OR_RETURN(const ShardMap shards, ReadIndex(fmt::format("{}/{}", folder, kIndexFile)));
  SafetensorsFolder opened;
  for (const auto& [shard, tensors] : shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file,
                     SafetensorsFile::Open(fmt::format("{}/{}", folder, shard)));
    RETURN_IF_ERROR(CompareWithIndex(shard, file, tensors));
    opened.shards_.push_back(std::move(file));
  }
  return opened;
}

const SafetensorsTensor* SafetensorsFolder::FindTensor(std::string_view name) const {
  for (const SafetensorsFile& shard : shards_) {
    if (const SafetensorsTensor* tensor = shard.FindTensor(name)) return tensor;
  }
  return nullptr;
}

std::vector<const SafetensorsTensor*> SafetensorsFolder::tensors() const {
  std::vector<const SafetensorsTensor*> all;
  for (const SafetensorsFile& shard : shards_) {
    for (const SafetensorsTensor& tensor : shard.tensors()) all.push_back(&tensor);
  }
  return all;
}

}  // namespace tokenbutler
