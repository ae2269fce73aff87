#include "engine/tokenizer/json_field.h"

namespace tokenbutler {

std::optional<JsonField> JsonField::Find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonField(&*it, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

absl::StatusOr<JsonField> JsonField::Get(std::string_view key) const {
  RETURN_IF_ERROR(CheckObject());
  if (std::optional<JsonField> field = Find(key)) return *std::move(field);
  return InvalidArgumentError("{}{}{} is missing", path_, path_.empty() ? "" : ".", key);
}

JsonField JsonField::At(size_t index) const {
  return JsonField(&(*value_)[index], fmt::format("{}[{}]", path_, index));
}

absl::Status JsonField::WrongType(std::string_view wanted) const {
  return InvalidArgumentError("{} is of type {}, must be {}",
                              path_.empty() ? std::string_view("the document") : path_,
                              value_->type_name(), wanted);
}

absl::Status JsonField::CheckObject() const {
  return value_->is_object() ? absl::OkStatus() : WrongType("an object");
}

absl::Status JsonField::CheckArray() const {
  return value_->is_array() ? absl::OkStatus() : WrongType("an array");
}

absl::StatusOr<std::string_view> JsonField::AsString() const {
  if (!value_->is_string()) return WrongType("a string");
  return std::string_view(value_->get_ref<const std::string&>());
}

absl::StatusOr<int32_t> JsonField::AsId(int32_t bound) const {
  if (!value_->is_number_integer()) return WrongType("an integer");
  // A negative number or one beyond int64 is out of range either way.
  const uint64_t id = value_->get<uint64_t>();
  if (id >= static_cast<uint64_t>(bound)) {
    return InvalidArgumentError("{} is {}, must be in [0, {})", path_, value_->dump(), bound);
  }
  return static_cast<int32_t>(id);
}

absl::StatusOr<std::string_view> JsonField::GetString(std::string_view key) const {
  ASSIGN_OR_RETURN(const JsonField field, Get(key));
  return field.AsString();
}

absl::StatusOr<bool> JsonField::GetBool(std::string_view key, bool otherwise) const {
  const std::optional<JsonField> field = Find(key);
  if (!field.has_value()) return otherwise;
  if (!field->value().is_boolean()) return field->WrongType("true or false");
  return field->value().get<bool>();
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name) {
  nlohmann::json document =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return InvalidArgumentError("{} is not valid JSON", name);
  return document;
}

}  // namespace tokenbutler
