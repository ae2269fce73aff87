#include "engine/weights/gguf_model.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

constexpr int64_t kMaxFiles = 4096;

// What precedes "-00001-of-00003.gguf" in the path of a file of a set.
absl::StatusOr<std::string> SetStem(const std::string& path, int64_t number, int64_t count) {
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", number, count);
  if (path.size() > suffix.size() &&
      path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0) {
    return path.substr(0, path.size() - suffix.size());
  }
  return InvalidArgumentError(
      "{}: split.no is {} and split.count is {}, so the name must end in {}", path, number - 1,
      count, suffix);
}

absl::StatusOr<int64_t> SplitField(const GgufFile& file, std::string_view field, int64_t otherwise,
                                   int64_t max) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, file.Find<int64_t>(field));
  const int64_t number = value.value_or(otherwise);
  if (number >= 0 && number <= max) return number;
  return InvalidArgumentError("{} is {}, must be from 0 to {}", field, number, max);
}

}  // namespace

absl::StatusOr<GgufModel> GgufModel::FromFile(GgufFile file) {
  std::vector<GgufFile> files;
  files.push_back(std::move(file));
  return GgufModel(std::move(files));
}

absl::StatusOr<GgufModel> GgufModel::Open(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const int64_t count, SplitField(file, "split.count", 0, kMaxFiles));
  if (count <= 1) return FromFile(std::move(file));
  ASSIGN_OR_RETURN(const int64_t number, SplitField(file, "split.no", 0, count - 1));
  ASSIGN_OR_RETURN(const std::string stem, SetStem(path, number + 1, count));
  std::vector<GgufFile> files;
  for (int64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(GgufFile part,
                     GgufFile::Open(fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count)));
    ASSIGN_OR_RETURN(const int64_t part_count, SplitField(part, "split.count", 0, kMaxFiles));
    ASSIGN_OR_RETURN(const int64_t part_number, SplitField(part, "split.no", 0, kMaxFiles));
    if (part_count != count || part_number != i) {
      return InvalidArgumentError(
          "{}-{:05}-of-{:05}.gguf: split.no is {} and split.count {}, must be {} and {}", stem,
          i + 1, count, part_number, part_count, i, count);
    }
    files.push_back(std::move(part));
  }
  GgufModel model(std::move(files));
  RETURN_IF_ERROR(model.CheckSet());
  return model;
}

absl::Status GgufModel::CheckSet() const {
  std::vector<std::string> names = TensorNamesInFiles();
  ASSIGN_OR_RETURN(const std::optional<int64_t> wanted,
                   metadata().Find<int64_t>("split.tensors.count"));
  if (wanted.has_value() && *wanted != static_cast<int64_t>(names.size())) {
    return InvalidArgumentError("split.tensors.count is {}, but the files hold {} tensors", *wanted,
                                names.size());
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return InvalidArgumentError("tensor '{}' stands in two files of the set", *twice);
}

const GgufTensor* GgufModel::FindTensor(std::string_view name) const {
  for (const GgufFile& file : files_) {
    if (const GgufTensor* tensor = file.FindTensor(name)) return tensor;
  }
  return nullptr;
}

bool GgufModel::Has(std::string_view field) const { return metadata().FindValue(field) != nullptr; }

absl::StatusOr<std::optional<bool>> GgufModel::FindBool(std::string_view field) const {
  return metadata().Find<bool>(field);
}

absl::StatusOr<std::optional<int64_t>> GgufModel::FindInt(std::string_view field) const {
  return metadata().Find<int64_t>(field);
}

absl::StatusOr<std::optional<double>> GgufModel::FindFloat(std::string_view field) const {
  return metadata().Find<double>(field);
}

absl::StatusOr<std::optional<std::string>> GgufModel::FindString(std::string_view field) const {
  ASSIGN_OR_RETURN(const std::optional<std::string_view> found,
                   metadata().Find<std::string_view>(field));
  if (!found.has_value()) return std::optional<std::string>();
  if (!IsWellFormedUtf8(*found))
    return InvalidArgumentError("metadata key '{}' is not UTF-8", field);
  return std::optional<std::string>(std::string(*found));
}

absl::StatusOr<std::optional<std::vector<std::string>>> GgufModel::FindStrings(
    std::string_view field) const {
  using Views = std::vector<std::string_view>;
  ASSIGN_OR_RETURN(const std::optional<Views> found, metadata().Find<Views>(field));
  if (!found.has_value()) return std::optional<std::vector<std::string>>();
  return std::optional<std::vector<std::string>>(std::in_place, found->begin(), found->end());
}

std::vector<int64_t> GgufModel::TensorShape(std::string_view name) const {
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr) return {};
  return {tensor->shape.begin(), tensor->shape.begin() + tensor->rank};
}

absl::StatusOr<std::vector<float>> GgufModel::TensorValues(std::string_view name,
                                                           int64_t max_elements) const {
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr) return NotFoundError("tensor {} is missing", name);
  if (tensor->rank != 1 || tensor->type != GgmlType::kF32 || tensor->shape[0] > max_elements) {
    return InvalidArgumentError("tensor {} is {} {}, must be F32 of one dimension of at most {}",
                                name, TraitsOf(tensor->type).name, ShapeText(TensorShape(name)),
                                max_elements);
  }
  std::vector<float> values(static_cast<size_t>(tensor->shape[0]));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

absl::StatusOr<std::optional<StoredTensor>> GgufModel::FindStored(std::string_view name) const {
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr) return std::optional<StoredTensor>();
  return std::optional<StoredTensor>(
      StoredTensor{std::string(name), tensor->type, TensorShape(name), tensor->data.data()});
}

std::vector<std::string> GgufModel::TensorNamesInFiles() const {
  std::vector<std::string> names;
  for (const GgufFile& file : files_) {
    for (const GgufTensor& tensor : file.tensors()) names.emplace_back(tensor.name);
  }
  return names;
}

}  // namespace tokenbutler
