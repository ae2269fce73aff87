#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/weights/safetensors.h"

namespace tokenbutler {

// One entry of a header as written: types and shape checked, offsets not yet placed in the file.
struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // data_offsets, from the start of the data section
};

// Parses the JSON header, in the order of the file. It is read as a stream, so that memory is
// bounded by the entries, and only the shape the format allows is accepted:
//   {"__metadata__": {string: string}, name: {"dtype": .., "shape": [..], "data_offsets": [b, e]}}
// INVALID_ARGUMENT naming the tensor and the field, UNIMPLEMENTED naming an unknown dtype.
// Writes what __metadata__ holds to `metadata`, unless it is null.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(
    std::string_view json, std::map<std::string, std::string>* metadata = nullptr);

// Bytes of one element.
int64_t SafetensorsTypeBytes(SafetensorsType type);

}  // namespace tokenbutler
