#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/dtype.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Pages of consecutive keys and how large the logit of any of their tokens can be (Quest, arXiv
// 2406.10774, section 3.2). A page's bounds are the maximum of each channel over its tokens and
// then the minimum of each channel, in a dtype that holds every key, so nothing is rounded:
//   [2][head_dim]
inline constexpr DType PageBoundsDType(DType keys) {
  return keys == DType::kI8 ? DType::kF32 : keys;  // scales differ from key to key
}
inline constexpr int kPageTokens = 16;
inline constexpr int kMaxPageHeadDim = 512;

struct PageBoundsParams {
  const void* keys = nullptr;  // [num_pages * kPageTokens, head_dim] dtype, as cached (after RoPE)
  DType dtype = DType::kBF16;
  // kI8: row t's scale is key_scales[t * KvLayout::kScalesPerToken].
  const float* key_scales = nullptr;
  int head_dim = 0;  // 1 ... kMaxPageHeadDim
  int num_pages = 0;
  void* bounds = nullptr;  // [num_pages, 2, head_dim] PageBoundsDType(dtype)
};
// Any thread; allocates nothing.
void PageBounds(const PageBoundsParams& params);
void PageBoundsPlain(const PageBoundsParams& params);

// Scores of the pages of one KV head, by the query heads that share it:
//   score[p] = max_h sum_c max(query[h][c] * max[p][c], query[h][c] * min[p][c])
// never below the largest query[h] . key of the page.
struct PageScoresParams {
  struct Head {
    // Where the bounds are: those of page p are in record b = p / pages_per_record, at
    // runs[b / records_per_run] + offset + (b % records_per_run) * record_bytes.
    const std::byte* const* runs = nullptr;
    size_t offset = 0;
    const float* queries = nullptr;  // [group_size, head_dim], after RoPE
    float* scores = nullptr;         // [num_pages]
  };
  int records_per_run = 1;
  size_t record_bytes = 0;
  int pages_per_record = 1;
  int num_pages = 0;           // [0, num_pages) are scored
  DType dtype = DType::kBF16;  // of the bounds: kF32, kBF16 or kF16
  int head_dim = 0;
  int group_size = 1;
  absl::Span<const Head> heads;
};
// Float32; the result does not depend on the number of threads.
void PageScores(const PageScoresParams& params, ComputePool& pool);
// The specification; float64 inside.
void PageScoresPlain(const PageScoresParams& params);

}  // namespace tokenbutler
