#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "engine/weights/ggml_type.h"

namespace tokenbutler {

// Types of metadata values, with the ids of the GGUF specification.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

std::string_view GgufTypeName(GgufType type);  // "uint32", "array" ...

// One metadata entry. The views point into the file.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array; otherwise equal to `type`
  uint64_t count = 1;                        // elements of an array; otherwise 1
  absl::Span<const std::byte> payload;       // `count` elements as stored, checked
};

// One tensor, its bytes checked to lie inside the file and to fit its shape.
struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  int rank = 0;                       // 1..4
  std::array<int64_t, 4> shape = {};  // row-major, outermost first (the file stores the reverse)
  absl::Span<const std::byte> data;

  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

// A GGUF v2/v3 file (little-endian), read and checked as a whole: magic, version, counts, string
// and array lengths, types, duplicate names, alignment, and for every tensor its dimensions, type,
// offset and range, gaps and overlaps included. Nothing is believed before it is checked and no
// memory is taken in proportion to a number that the file merely claims. Immutable; any thread may
// read.
//
// Source: "GGUF" specification, github.com/ggml-org/ggml/blob/master/docs/gguf.md.
class GgufFile {
 public:
  // Maps and parses. Errors are those of MappedFile::Open and Parse, prefixed with the path.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // INVALID_ARGUMENT naming field, value and bound when the bytes are not a well-formed file,
  // UNIMPLEMENTED for a version, byte order or tensor type that is not read.
  // REQUIRES: `bytes` outlives the result.
  static absl::StatusOr<GgufFile> Parse(absl::Span<const std::byte> bytes);

  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }
  absl::Span<const GgufValue> metadata() const { return metadata_; }  // in the file's order
  absl::Span<const GgufTensor> tensors() const { return tensors_; }   // in the file's order

  const GgufValue* FindValue(std::string_view key) const;     // null when absent
  const GgufTensor* FindTensor(std::string_view name) const;  // null when absent

  // The value of `key`, or nullopt when there is none. T is one of
  //   bool, int64_t (any stored integer type), double (float32 or float64), std::string_view,
  //   std::vector<bool>, std::vector<int64_t>, std::vector<float> (stored float32),
  //   std::vector<std::string_view>.
  // INVALID_ARGUMENT naming key, found type and wanted type otherwise. Strings are views into the
  // file and any bytes at all: GGUF promises UTF-8 but nobody checks.
  template <typename T>
  absl::StatusOr<std::optional<T>> Find(std::string_view key) const;

  // The same, NOT_FOUND naming the key when it is absent.
  template <typename T>
  absl::StatusOr<T> Get(std::string_view key) const {
    ASSIGN_OR_RETURN(std::optional<T> value, Find<T>(key));
    if (!value.has_value()) return NotFoundError("metadata key '{}' is missing", key);
    return *std::move(value);
  }

 private:
  friend class GgufParser;
  GgufFile() = default;

  std::optional<MappedFile> file_;  // set when opened from a path
  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  std::vector<GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> metadata_by_key_;  // indices, sorted by key
  std::vector<uint32_t> tensors_by_name_;  // indices, sorted by name
};

}  // namespace tokenbutler
