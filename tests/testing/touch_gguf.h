#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/weights/dequantise.h"
#include "engine/weights/gguf.h"

namespace tokenbutler {

// Reads everything that a parsed file offers, in every type: every metadata value, the bytes of
// every tensor. For damaged files that parse all the same, under the sanitizers. Returns a number
// that depends on what was read.
inline uint64_t TouchEverything(const GgufFile& file) {
  uint64_t sum = 0;
  for (const GgufValue& value : file.metadata()) {
    sum += file.Find<bool>(value.key).ok();
    sum += file.Find<int64_t>(value.key).ok();
    sum += file.Find<double>(value.key).ok();
    sum += file.Find<std::string_view>(value.key).ok();
    sum += file.Find<std::vector<bool>>(value.key).ok();
    sum += file.Find<std::vector<int64_t>>(value.key).ok();
    sum += file.Find<std::vector<float>>(value.key).ok();
    sum += file.Find<std::vector<std::string_view>>(value.key).ok();
  }
  for (const GgufTensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.data) sum += static_cast<uint64_t>(b);
    const GgmlTypeTraits& traits = TraitsOf(tensor.type);
    float values[256];
    for (size_t at = 0; at < tensor.data.size(); at += traits.block_bytes) {
      Dequantise(tensor.type, tensor.data.data() + at, traits.block_elements, values);
      sum += values[0] > 0.0f;
    }
  }
  return sum;
}

}  // namespace tokenbutler
