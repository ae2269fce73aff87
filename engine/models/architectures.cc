#include "engine/models/architectures.h"

#include <string_view>
#include <vector>

namespace tokenbutler {
namespace {

// `names` of all architectures for an error message: "llama, qwen2, mistral".
std::string ListNames(std::string_view Architecture::*name) {
  std::string list;
  for (const Architecture* architecture : Architectures()) {
    if ((architecture->*name).empty()) continue;
    if (!list.empty()) list += ", ";
    list += architecture->*name;
  }
  return list;
}

const Architecture* FindBy(std::string_view Architecture::*name, std::string_view wanted) {
  for (const Architecture* architecture : Architectures()) {
    if (!wanted.empty() && architecture->*name == wanted) return architecture;
  }
  return nullptr;
}

using ReadConfig = absl::Status (*)(const ConfigFields&, ModelConfig*);

absl::StatusOr<ModelConfig> ReadAndValidate(const Architecture& architecture, ReadConfig read,
                                            const ConfigFields& fields) {
  ModelConfig config;
  config.architecture = architecture.name;
  RETURN_IF_ERROR(read(fields, &config));
  RETURN_IF_ERROR(ValidateModelConfig(config));
  return config;
}

}  // namespace

absl::Span<const Architecture* const> Architectures() {
  static const Architecture* const kAll[] = {
      &LlamaArchitecture(),
      &Qwen2Architecture(),
      &MistralArchitecture(),
  };
  return kAll;
}

absl::StatusOr<const Architecture*> FindHfArchitecture(const ConfigFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.FindString("model_type"));
  ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> classes,
                   fields.FindStrings("architectures"));
  const std::string wanted_class = classes.has_value() && !classes->empty() ? classes->front() : "";
  if (!type.has_value() && wanted_class.empty()) {
    return InvalidArgumentError("config.json names neither model_type nor architectures");
  }
  const Architecture* found = type.has_value() ? FindBy(&Architecture::hf_model_type, *type)
                                               : FindBy(&Architecture::hf_class, wanted_class);
  if (found == nullptr) {
    return UnimplementedError("architecture '{}' is not implemented ({} are)",
                              type.value_or(wanted_class), ListNames(&Architecture::hf_model_type));
  }
  // A classifier or an embedding model of a known family is not a language model.
  if (!wanted_class.empty() && wanted_class != found->hf_class) {
    return UnimplementedError(
        "architectures[0] is '{}', for model_type '{}' only '{}' is "
        "implemented",
        wanted_class, found->hf_model_type, found->hf_class);
  }
  return found;
}

absl::StatusOr<const Architecture*> FindGgufArchitecture(const ConfigFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<std::string> name,
                   fields.FindString("general.architecture"));
  if (!name.has_value()) return InvalidArgumentError("general.architecture is missing");
  const Architecture* found = FindBy(&Architecture::gguf_name, *name);
  if (found != nullptr) return found;
  return UnimplementedError("general.architecture is '{}', which is not implemented ({} are)",
                            name->substr(0, 64), ListNames(&Architecture::gguf_name));
}

absl::StatusOr<ModelConfig> ReadHfConfig(const Architecture& architecture,
                                         const ConfigFields& fields) {
  return ReadAndValidate(architecture, architecture.read_hf, fields);
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const Architecture& architecture,
                                           const ConfigFields& fields) {
  return ReadAndValidate(architecture, architecture.read_gguf, fields);
}

}  // namespace tokenbutler
