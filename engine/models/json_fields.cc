#include "engine/models/json_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/mapped_file.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{16} << 20;
// Nested deeper than this, a document is refused before its tree is built.
constexpr int kMaxDepth = 64;

// How deep the brackets of `text` nest, those inside strings excepted. A bound, not a check of the
// syntax, which the parser does.
int BracketDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  }
  return deepest;
}

// The value of an integer that fits in int64.
std::optional<int64_t> AsInt64(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

}  // namespace

JsonFields::JsonFields(std::shared_ptr<const json> object, std::string source)
    : object_(std::move(object)), source_(std::move(source)) {}

absl::StatusOr<JsonFields> JsonFields::Parse(std::string_view text, std::string source) {
  if (const int depth = BracketDepth(text); depth > kMaxDepth) {
    return InvalidArgumentError("{} nests {} deep, must be at most {}", source, depth, kMaxDepth);
  }
  auto object = std::make_shared<json>();
  try {
    *object = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    return InvalidArgumentError("{} is not JSON: {}", source, error.what());
  }
  if (!object->is_object()) {
    return InvalidArgumentError("{} is a JSON {}, must be an object", source, object->type_name());
  }
  return JsonFields(std::move(object), std::move(source));
}

absl::StatusOr<JsonFields> JsonFields::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const absl::Span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kMaxFileBytes) {
    return InvalidArgumentError("{} has {} bytes, must have at most {}", path, bytes.size(),
                                kMaxFileBytes);
  }
  return Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

const json* JsonFields::Find(std::string_view field) const {
  const json* value = object_.get();
  while (true) {
    const size_t dot = field.find('.');
    const auto it = value->find(std::string(field.substr(0, dot)));
    if (it == value->end()) return nullptr;
    value = &*it;
    if (dot == std::string_view::npos) return value;
    if (!value->is_object()) return nullptr;
    field.remove_prefix(dot + 1);
  }
}

absl::Status JsonFields::WrongType(std::string_view field, const json& value,
                                   std::string_view wanted) const {
  return InvalidArgumentError("{}: {} is a {}, wanted {}", source_, field, value.type_name(),
                              wanted);
}

bool JsonFields::Has(std::string_view field) const { return Find(field) != nullptr; }

absl::StatusOr<std::optional<bool>> JsonFields::FindBool(std::string_view field) const {
  const json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::optional<bool>();
  if (!value->is_boolean()) return WrongType(field, *value, "true or false");
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<std::optional<int64_t>> JsonFields::FindInt(std::string_view field) const {
  const json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::optional<int64_t>();
  const std::optional<int64_t> number = AsInt64(*value);
  if (!number.has_value()) return WrongType(field, *value, "a 64-bit integer");
  return number;
}

absl::StatusOr<std::optional<double>> JsonFields::FindFloat(std::string_view field) const {
  const json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::optional<double>();
  if (!value->is_number()) return WrongType(field, *value, "a number");
  return std::optional<double>(value->get<double>());
}

absl::StatusOr<std::optional<std::string>> JsonFields::FindString(std::string_view field) const {
  const json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::optional<std::string>();
  if (!value->is_string()) return WrongType(field, *value, "a string");
  return std::optional<std::string>(value->get_ref<const std::string&>());
}

absl::StatusOr<std::optional<std::vector<std::string>>> JsonFields::FindStrings(
    std::string_view field) const {
  const json* value = Find(field);
  if (value == nullptr || value->is_null()) return std::optional<std::vector<std::string>>();
  if (!value->is_array()) return WrongType(field, *value, "an array of strings");
  std::vector<std::string> strings;
  for (const json& element : *value) {
    if (!element.is_string()) return WrongType(field, element, "only strings in the array");
    strings.push_back(element.get_ref<const std::string&>());
  }
  return std::optional<std::vector<std::string>>(std::move(strings));
}

absl::StatusOr<std::vector<int64_t>> JsonFields::FindInts(std::string_view field) const {
  std::vector<int64_t> numbers;
  const json* value = Find(field);
  if (value == nullptr || value->is_null()) return numbers;
  if (!value->is_array()) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> number, FindInt(field));
    numbers.push_back(*number);
    return numbers;
  }
  for (const json& element : *value) {
    const std::optional<int64_t> number = AsInt64(element);
    if (!number.has_value()) return WrongType(field, element, "only integers in the array");
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<int64_t> JsonFields::TensorShape(std::string_view) const { return {}; }

absl::StatusOr<std::vector<float>> JsonFields::TensorValues(std::string_view name, int64_t) const {
  return NotFoundError("{} holds no tensor {}", source_, name);
}

}  // namespace tokenbutler
