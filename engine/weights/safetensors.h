#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace tokenbutler {

// Element types of the format. Weights are read from kF32, kF16 and kBF16; files may hold others.
enum class SafetensorsType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

std::string_view SafetensorsTypeName(SafetensorsType type);  // "BF16", as in the file

// One tensor, its bytes checked to lie inside the file and to fit its shape.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;  // row-major, outermost first; empty for a scalar; may hold zeros
  absl::Span<const std::byte> data;
};

// A .safetensors file, read and checked as a whole: length of the header, its JSON, names (no
// duplicates), types, shapes, and offsets that cover the data section without gap or overlap, as
// the format demands. No memory is taken in proportion to a number the file merely claims.
// Immutable; any thread may read.
//
// Source: github.com/huggingface/safetensors, README "Format".
class SafetensorsFile {
 public:
  // Maps and parses. Errors are those of MappedFile::Open and Parse, prefixed with the path.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // INVALID_ARGUMENT naming tensor, field, value and bound; UNIMPLEMENTED for an unknown dtype.
  // REQUIRES: `bytes` outlives the result.
  static absl::StatusOr<SafetensorsFile> Parse(absl::Span<const std::byte> bytes);

  absl::Span<const SafetensorsTensor> tensors() const { return tensors_; }  // sorted by name
  const SafetensorsTensor* FindTensor(std::string_view name) const;         // null when absent
  // What __metadata__ holds.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;

  std::optional<MappedFile> file_;  // set when opened from a path
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsTensor> tensors_;
};

// The tensors of a folder: its model.safetensors, or the shards that model.safetensors.index.json
// lists. Immutable; any thread may read.
class SafetensorsFolder {
 public:
  // NOT_FOUND when the folder holds neither file, or a shard or a tensor that the index names is
  // missing; INVALID_ARGUMENT for a damaged index, a shard that is not a plain file name, a tensor
  // that stands in two shards or in another shard than the index says, or is not in the index.
  static absl::StatusOr<SafetensorsFolder> Open(const std::string& folder);

  const SafetensorsTensor* FindTensor(std::string_view name) const;  // null when absent
  // In every shard, in order.
  std::vector<const SafetensorsTensor*> tensors() const;

 private:
  SafetensorsFolder() = default;
  static absl::StatusOr<SafetensorsFolder> OpenSharded(const std::string& folder);

  std::vector<SafetensorsFile> shards_;
};

}  // namespace tokenbutler
