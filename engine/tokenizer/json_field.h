#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {

// A value inside a JSON document of unknown worth, with the path that error messages name.
// Every access checks the type and fails with INVALID_ARGUMENT; nothing throws.
// Views the document, which must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json* value, std::string path)
      : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& value() const { return *value_; }
  bool is_object() const { return value_->is_object(); }
  bool is_array() const { return value_->is_array(); }
  bool is_string() const { return value_->is_string(); }

  // The member `key`; nullopt when it is absent or null, or when this is no object.
  std::optional<JsonField> Find(std::string_view key) const;
  // The member `key`, which must be there.
  absl::StatusOr<JsonField> Get(std::string_view key) const;
  // Element `index`. REQUIRES: an array with more than `index` elements.
  JsonField At(size_t index) const;
  size_t size() const { return value_->size(); }

  absl::Status CheckObject() const;
  absl::Status CheckArray() const;
  // The view is of the document.
  absl::StatusOr<std::string_view> AsString() const;
  // An integer in [0, bound).
  absl::StatusOr<int32_t> AsId(int32_t bound) const;

  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  // `otherwise` when the member is absent or null.
  absl::StatusOr<bool> GetBool(std::string_view key, bool otherwise) const;

 private:
  absl::Status WrongType(std::string_view wanted) const;

  const nlohmann::json* value_;
  std::string path_;  // "model.merges[3]"
};

// Parses a whole document. INVALID_ARGUMENT naming `name` when it is not JSON.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name);

}  // namespace tokenbutler
