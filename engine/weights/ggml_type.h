#pragma once

#include <cstdint>
#include <string_view>

namespace tokenbutler {

// How a tensor's elements are stored in a GGUF file: the type ids of ggml.h. Quantised types store
// blocks of `block_elements` consecutive elements of a row in `block_bytes` bytes.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kBF16 = 30,
};

struct GgmlTypeTraits {
  GgmlType type;
  std::string_view name;  // "Q4_K"
  int block_elements;
  int block_bytes;
};

// Null when the id is unknown or of a type that we cannot dequantise.
const GgmlTypeTraits* FindGgmlType(uint32_t id);

// The name ggml gives to `id`, also for types that we do not read ("IQ4_XS"); "unknown" otherwise.
std::string_view GgmlTypeNameOf(uint32_t id);

const GgmlTypeTraits& TraitsOf(GgmlType type);

// REQUIRES: num_elements is a multiple of the type's block_elements.
inline int64_t GgmlBytes(GgmlType type, int64_t num_elements) {
  const GgmlTypeTraits& traits = TraitsOf(type);
  return num_elements / traits.block_elements * traits.block_bytes;
}

}  // namespace tokenbutler
