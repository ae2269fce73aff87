#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/projected_keys.h"

namespace tokenbutler {

// What one record's codes are multiplied by, for the query heads of one KV head.
struct PreparedQueries {
  static constexpr int kMaxHeads = 64;
  static constexpr int kMaxDim = 128;
  // logit[h][t] = base[h] + step[h] * (weights[h] . codes[t]), offsets included.
  alignas(64) float base[kMaxHeads];
  float step[kMaxHeads];
  alignas(64) float weights[kMaxHeads * kMaxDim];    // [group_size, dim]; step is 1
  alignas(64) int8_t weights8[kMaxHeads * kMaxDim];  // the same, rounded
};

// For multiplication of bytes (AVX-512 VNNI).
// REQUIRES: the CPU has it; kInt8; dim is a multiple of 16.
bool HasByteDot();
void PrepareByteDot(const ProjectedScoresParams& params, const ProjectedScoresParams::Head& head,
                    const std::byte* record, PreparedQueries* prepared);
// Logits of sub-blocks [first, last) of a record: their maximum over the heads to out
// [16 (last - first)], or each head's to out [group_size, 16 (last - first)].
// `next`: a record to fetch ahead, the same part of it; may be any address.
void ByteDotLogits(const ProjectedScoresParams& params, const PreparedQueries& prepared,
                   const std::byte* record, const std::byte* next, int first, int last,
                   bool want_max, float* out);

}  // namespace tokenbutler
