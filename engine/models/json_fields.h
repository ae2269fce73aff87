#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/config_fields.h"
#include "nlohmann/json_fwd.hpp"

namespace tokenbutler {

// A JSON object as ConfigFields: config.json, generation_config.json, tokenizer_config.json, or the
// value of a flag. It knows no tensors.
class JsonFields final : public ConfigFields {
 public:
  // INVALID_ARGUMENT with the place when `text` is not one JSON object. `source` names it in
  // messages: "config.json", "--rope-scaling".
  static absl::StatusOr<JsonFields> Parse(std::string_view text, std::string source);
  // Reads a file of at most 16 MiB. Errors of MappedFile::Open, and those of Parse with the path.
  static absl::StatusOr<JsonFields> Open(const std::string& path);

  bool Has(std::string_view field) const override;
  absl::StatusOr<std::optional<bool>> FindBool(std::string_view field) const override;
  absl::StatusOr<std::optional<int64_t>> FindInt(std::string_view field) const override;
  absl::StatusOr<std::optional<double>> FindFloat(std::string_view field) const override;
  absl::StatusOr<std::optional<std::string>> FindString(std::string_view field) const override;
  absl::StatusOr<std::optional<std::vector<std::string>>> FindStrings(
      std::string_view field) const override;
  std::vector<int64_t> TensorShape(std::string_view name) const override;
  absl::StatusOr<std::vector<float>> TensorValues(std::string_view name,
                                                  int64_t max_elements) const override;

  // An integer or a list of integers, as `eos_token_id` comes; empty when absent or null.
  absl::StatusOr<std::vector<int64_t>> FindInts(std::string_view field) const;
  // Null when absent. Valid as long as this object.
  const nlohmann::json* Find(std::string_view field) const;

 private:
  JsonFields(std::shared_ptr<const nlohmann::json> object, std::string source);
  absl::Status WrongType(std::string_view field, const nlohmann::json& value,
                         std::string_view wanted) const;

  std::shared_ptr<const nlohmann::json> object_;
  std::string source_;
};

}  // namespace tokenbutler
