#include "engine/weights/hf_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "engine/tokenizer/unicode.h"
#include "engine/weights/generation_defaults.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !error;
}

absl::StatusOr<std::optional<JsonFields>> OpenOptional(const std::string& path) {
  if (!Exists(path)) return std::optional<JsonFields>();
  ASSIGN_OR_RETURN(JsonFields fields, JsonFields::Open(path));
  return std::optional<JsonFields>(std::move(fields));
}

absl::StatusOr<std::string> ReadTemplate(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const absl::Span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kMaxTemplateBytes) {
    return InvalidArgumentError("{} has {} bytes, must have at most {}", path, bytes.size(),
                                kMaxTemplateBytes);
  }
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!IsWellFormedUtf8(text)) return InvalidArgumentError("{} is not UTF-8", path);
  return text;
}

// The entry called "default" of [{"name": .., "template": ..}, ..].
std::optional<std::string> DefaultOfNamed(const nlohmann::json& templates) {
  for (const nlohmann::json& entry : templates) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) continue;
    if (entry["name"] == "default" && entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

absl::StatusOr<GgmlType> WeightType(const SafetensorsTensor& tensor) {
  switch (tensor.type) {
    case SafetensorsType::kF32:
      return GgmlType::kF32;
    case SafetensorsType::kF16:
      return GgmlType::kF16;
    case SafetensorsType::kBF16:
      return GgmlType::kBF16;
    default:
      return UnimplementedError("tensor {} has dtype {}: only F32, F16 and BF16 weights are read",
                                tensor.name, SafetensorsTypeName(tensor.type));
  }
}

}  // namespace

absl::StatusOr<HfFolder> HfFolder::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(JsonFields config, JsonFields::Open(folder + "/config.json"));
  ASSIGN_OR_RETURN(SafetensorsFolder tensors, SafetensorsFolder::Open(folder));
  HfFolder opened(folder, std::move(config), std::move(tensors));
  ASSIGN_OR_RETURN(opened.tokenizer_config_, OpenOptional(folder + "/tokenizer_config.json"));
  ASSIGN_OR_RETURN(opened.generation_config_, OpenOptional(folder + "/generation_config.json"));
  return opened;
}

TokenizerSource HfFolder::tokenizer() const {
  const std::string tokenizer = folder_ + "/tokenizer.json";
  if (!Exists(tokenizer)) return std::monostate();
  return HfTokenizerFiles{tokenizer,
                          tokenizer_config_.has_value() ? folder_ + "/tokenizer_config.json" : ""};
}

absl::StatusOr<std::optional<std::string>> HfFolder::ChatTemplate() const {
  const std::string file = folder_ + "/chat_template.jinja";
  if (Exists(file)) {
    ASSIGN_OR_RETURN(std::string text, ReadTemplate(file));
    return std::optional<std::string>(std::move(text));
  }
  if (!tokenizer_config_.has_value()) return std::optional<std::string>();
  const nlohmann::json* value = tokenizer_config_->Find("chat_template");
  if (value != nullptr && value->is_array()) return DefaultOfNamed(*value);
  return tokenizer_config_->FindString("chat_template");
}

absl::StatusOr<std::string> HfFolder::SpecialToken(std::string_view field) const {
  if (!tokenizer_config_.has_value()) return std::string();
  const nlohmann::json* value = tokenizer_config_->Find(field);
  const bool is_object = value != nullptr && value->is_object();
  ASSIGN_OR_RETURN(
      const std::optional<std::string> text,
      tokenizer_config_->FindString(std::string(field) + (is_object ? ".content" : "")));
  return text.value_or("");
}

absl::StatusOr<GenerationDefaults> HfFolder::Generation(int vocab_size) const {
  GenerationDefaults defaults;
  if (generation_config_.has_value()) {
    ASSIGN_OR_RETURN(defaults, ReadHfGeneration(*generation_config_, vocab_size));
  }
  ASSIGN_OR_RETURN(const GenerationDefaults of_config, ReadHfGeneration(config_, vocab_size));
  if (defaults.eos_ids.empty()) defaults.eos_ids = of_config.eos_ids;
  if (!defaults.bos_id.has_value()) defaults.bos_id = of_config.bos_id;
  return defaults;
}

absl::StatusOr<std::optional<StoredTensor>> HfFolder::FindStored(std::string_view name) const {
  const SafetensorsTensor* tensor = tensors_.FindTensor(name);
  if (tensor == nullptr) return std::optional<StoredTensor>();
  ASSIGN_OR_RETURN(const GgmlType type, WeightType(*tensor));
  return std::optional<StoredTensor>(
      StoredTensor{tensor->name, type, tensor->shape, tensor->data.data()});
}

std::vector<std::string> HfFolder::TensorNamesInFiles() const {
  std::vector<std::string> names;
  for (const SafetensorsTensor* tensor : tensors_.tensors()) names.push_back(tensor->name);
  return names;
}

}  // namespace tokenbutler
