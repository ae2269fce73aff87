#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/weights/ggml_type.h"

namespace tokenbutler {

// A tensor as a file stores it, its bytes checked to fit type and shape. Points into the mapping.
struct StoredTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;  // safetensors' F32, F16 and BF16 are the same types
  std::vector<int64_t> shape;      // row-major, outermost first
  const std::byte* data = nullptr;
};

// Where the loader takes tensors from: a GGUF file (or set), or a folder of safetensors. Immutable.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // nullopt when there is none; UNIMPLEMENTED naming tensor and type for one that cannot be read.
  virtual absl::StatusOr<std::optional<StoredTensor>> FindStored(std::string_view name) const = 0;
  // The names of all tensors.
  virtual std::vector<std::string> TensorNamesInFiles() const = 0;
};

// "[576, 1536]", for messages.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace tokenbutler
