#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tokenbutler {

// out[i] = table[token_ids[i]], widened to float32 (exact).
struct EmbeddingParams {
  const void* table = nullptr;         // [vocab_size, hidden_size] table_dtype
  DType table_dtype = DType::kBF16;    // kBF16, kF16 or kF32
  const int32_t* token_ids = nullptr;  // [num_rows], each in [0, vocab_size)
  float* out = nullptr;                // [num_rows, hidden_size]
  int num_rows = 0;
  int hidden_size = 0;
};

// A gather of a few kilobytes: the plain loop is the only version.
void Embedding(const EmbeddingParams& params);

}  // namespace tokenbutler
