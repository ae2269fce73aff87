#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/weights/gguf.h"
#include "engine/weights/gguf_cursor.h"

namespace tokenbutler {

// Fills one GgufFile from its bytes, in the order of the format. Used once, by GgufFile::Parse,
// which documents the checks and errors.
class GgufParser {
 public:
  explicit GgufParser(absl::Span<const std::byte> bytes) : bytes_(bytes), cursor_(bytes) {}

  absl::StatusOr<GgufFile> Parse();

 private:
  struct Range {
    uint64_t offset = 0;  // from the start of the data section
    uint64_t bytes = 0;
    uint32_t tensor = 0;  // index
  };

  absl::Status ParseHeader();
  // Against the bytes that remain and kMaxEntries.
  absl::Status CheckCount(std::string_view field, uint64_t count, uint64_t min_bytes_each) const;

  absl::Status ParseMetadata();
  absl::Status ReadType(std::string_view field, GgufType* type);
  absl::Status ReadArrayHead(GgufValue* value);
  absl::Status TakePayload(GgufValue* value);
  absl::Status TakeStrings(GgufValue* value);
  absl::Status ReadAlignment();

  absl::Status ParseTensorInfos();
  absl::Status ReadShape(GgufTensor* tensor);
  absl::Status ReadTensorType(GgufTensor* tensor, uint64_t* bytes);
  absl::Status PlaceTensors();
  // The data section must be covered exactly, alignment padding excepted, as ggml demands too.
  absl::Status CheckCoverage();

  absl::Span<const std::byte> bytes_;
  GgufCursor cursor_;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  uint64_t data_bytes_ = 0;  // of the data section
  std::vector<Range> ranges_;
  GgufFile file_;
};

}  // namespace tokenbutler
