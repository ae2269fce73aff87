#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

// What a model file says about its model, field by field: config.json or GGUF metadata. Fields of a
// nested JSON object are named with a dot: "rope_scaling.factor". All methods are const and may be
// called from any thread.
//
// A field that is absent or null is nullopt; one of another type is INVALID_ARGUMENT naming the
// field, the type found and the type wanted.
class ConfigFields {
 public:
  virtual ~ConfigFields() = default;

  // True when the field is there, null included.
  virtual bool Has(std::string_view field) const = 0;
  virtual absl::StatusOr<std::optional<bool>> FindBool(std::string_view field) const = 0;
  virtual absl::StatusOr<std::optional<int64_t>> FindInt(std::string_view field) const = 0;
  // Integers are taken too where the format has one kind of number (JSON).
  virtual absl::StatusOr<std::optional<double>> FindFloat(std::string_view field) const = 0;
  virtual absl::StatusOr<std::optional<std::string>> FindString(std::string_view field) const = 0;
  virtual absl::StatusOr<std::optional<std::vector<std::string>>> FindStrings(
      std::string_view field) const = 0;

  // The sizes of a tensor, outermost first; empty when the files have no such tensor.
  virtual std::vector<int64_t> TensorShape(std::string_view name) const = 0;
  // The values of a small one-dimensional float32 tensor. NOT_FOUND; INVALID_ARGUMENT when it is
  // not one or has more than `max_elements`.
  virtual absl::StatusOr<std::vector<float>> TensorValues(std::string_view name,
                                                          int64_t max_elements) const = 0;
};

// Inclusive bounds of a number.
template <typename T>
struct Bounds {
  T min;
  T max;
};

// Reads a field that must be there into *out. NOT_FOUND, or INVALID_ARGUMENT with the bounds.
absl::Status ReadInt(const ConfigFields& fields, std::string_view field, Bounds<int> bounds,
                     int* out);
absl::Status ReadFloat(const ConfigFields& fields, std::string_view field, Bounds<float> bounds,
                       float* out);

// The same, but leaves *out as it is when the field is absent or null.
absl::Status ReadOptionalInt(const ConfigFields& fields, std::string_view field, Bounds<int> bounds,
                             int* out);
absl::Status ReadOptionalFloat(const ConfigFields& fields, std::string_view field,
                               Bounds<float> bounds, float* out);
absl::Status ReadOptionalBool(const ConfigFields& fields, std::string_view field, bool* out);

}  // namespace tokenbutler
