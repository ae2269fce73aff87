#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "engine/weights/ggml_type.h"

namespace tokenbutler {

// Expands `num_elements` consecutive stored elements to float32, or rounds the same float32 values
// to the nearest bf16. The float32 results are bit-equal to those of the `gguf` Python package
// (gguf.quants.dequantize), whose order of operations the formulas in the source follow.
//
// A row of a tensor is a whole number of blocks, so any range of rows can be expanded by itself:
// callers split the rows between threads.
//
// REQUIRES: num_elements is a multiple of the type's block_elements; `stored` holds
// GgmlBytes(type, num_elements) bytes, at any alignment; `out` holds num_elements elements.
void Dequantise(GgmlType type, const std::byte* stored, int64_t num_elements, float* out);
void Dequantise(GgmlType type, const std::byte* stored, int64_t num_elements, BF16* out);

}  // namespace tokenbutler
