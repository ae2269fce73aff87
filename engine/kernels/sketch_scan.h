#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// Chooses the most important tokens of each KV head by low-bit keys: the tokens that TopK() would
// choose from SketchScores(), but scores far below the threshold are never written.
struct SketchScanParams {
  struct Head {
    SketchedKeys keys;
    const float* queries = nullptr;  // [group_size, head_dim], after RoPE
    const float* lse = nullptr;      // [group_size], or null: zeros
    int begin = 0, end = 0;          // positions in `keys` to choose from
    // Of them, only those in these blocks, which overlap the range, ascending; null: all.
    std::optional<absl::Span<const int32_t>> blocks = std::nullopt;
    int k = 0;  // how many to choose; fewer when there are fewer

    // Outputs.
    int32_t* tokens = nullptr;  // [k + 16] ascending; the last 16 are scratch
    float* scores = nullptr;    // [k] scores of `tokens`, or null
    int num_selected = 0;       // min(k, how many there are)
    // In: scores below this will not be chosen, if the guess is right; out: the guess for the next
    // step. A wrong guess costs time, never the result. NaN: no guess.
    float threshold = std::numeric_limits<float>::quiet_NaN();
  };
  SketchLayout layout;
  int group_size = 1;  // 1 ... 64
  float softmax_scale = 1;
  absl::Span<Head> heads;          // of one or more sequences
  std::byte* workspace = nullptr;  // [SketchScanWorkspaceBytes(heads)], 64-byte aligned
};

// Bytes of workspace for heads with these ranges. Most of it is touched only when thresholds are
// missing or wrong.
size_t SketchScanWorkspaceBytes(absl::Span<const SketchScanParams::Head> heads);

// The result depends neither on the number of threads nor on `threshold`.
void SketchScan(const SketchScanParams& params, ComputePool& pool);
// The specification. Leaves `threshold` alone; uses no workspace.
void SketchScanPlain(const SketchScanParams& params);

}  // namespace tokenbutler
