#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/models/config_fields.h"
#include "engine/weights/gguf.h"
#include "engine/weights/tensor_source.h"

namespace tokenbutler {

// A model in one GGUF file, or in a set that gguf-split wrote (name-00001-of-0000N.gguf, each with
// split.* metadata; the first file's metadata count). Immutable; any thread may read.
class GgufModel final : public ConfigFields, public TensorSource {
 public:
  // `path` may be any file of a set. Errors of GgufFile::Open; INVALID_ARGUMENT when the set does
  // not fit together; NOT_FOUND naming a file of the set that is missing.
  static absl::StatusOr<GgufModel> Open(const std::string& path);
  // One file that is read already.
  static absl::StatusOr<GgufModel> FromFile(GgufFile file);

  const GgufFile& metadata() const { return files_.front(); }

  // ConfigFields. Strings that are not valid UTF-8 are INVALID_ARGUMENT.
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

  // TensorSource.
  absl::StatusOr<std::optional<StoredTensor>> FindStored(std::string_view name) const override;
  std::vector<std::string> TensorNamesInFiles() const override;

 private:
  explicit GgufModel(std::vector<GgufFile> files) : files_(std::move(files)) {}
  const GgufTensor* FindTensor(std::string_view name) const;
  absl::Status CheckSet() const;

  std::vector<GgufFile> files_;  // at least one
};

}  // namespace tokenbutler
