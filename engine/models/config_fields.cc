#include "engine/models/config_fields.h"

namespace tokenbutler {
namespace {

template <typename T, typename Found>
absl::Status CheckBounds(std::string_view field, Found found, Bounds<T> bounds) {
  // Written so that NaN fails.
  if (found >= static_cast<Found>(bounds.min) && found <= static_cast<Found>(bounds.max)) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("{} is {}, must be from {} to {}", field, found, bounds.min,
                              bounds.max);
}

absl::Status Missing(std::string_view field) {
  return NotFoundError("{} is missing, and has no default", field);
}

}  // namespace

absl::Status ReadInt(const ConfigFields& fields, std::string_view field, Bounds<int> bounds,
                     int* out) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> found, fields.FindInt(field));
  if (!found.has_value()) return Missing(field);
  RETURN_IF_ERROR(CheckBounds(field, *found, bounds));
  *out = static_cast<int>(*found);
  return absl::OkStatus();
}

absl::Status ReadFloat(const ConfigFields& fields, std::string_view field, Bounds<float> bounds,
                       float* out) {
  ASSIGN_OR_RETURN(const std::optional<double> found, fields.FindFloat(field));
  if (!found.has_value()) return Missing(field);
  RETURN_IF_ERROR(CheckBounds(field, *found, bounds));
  *out = static_cast<float>(*found);
  return absl::OkStatus();
}

absl::Status ReadOptionalInt(const ConfigFields& fields, std::string_view field, Bounds<int> bounds,
                             int* out) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> found, fields.FindInt(field));
  return found.has_value() ? ReadInt(fields, field, bounds, out) : absl::OkStatus();
}

absl::Status ReadOptionalFloat(const ConfigFields& fields, std::string_view field,
                               Bounds<float> bounds, float* out) {
  ASSIGN_OR_RETURN(const std::optional<double> found, fields.FindFloat(field));
  return found.has_value() ? ReadFloat(fields, field, bounds, out) : absl::OkStatus();
}

absl::Status ReadOptionalBool(const ConfigFields& fields, std::string_view field, bool* out) {
  ASSIGN_OR_RETURN(const std::optional<bool> found, fields.FindBool(field));
  if (found.has_value()) *out = *found;
  return absl::OkStatus();
}

}  // namespace tokenbutler
