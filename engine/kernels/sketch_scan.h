#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// Chooses the most important tokens of each KV head by low-bit keys: the tokens that TopK() would
// choose from SketchScores(), but scores below a threshold are never written. The threshold is
// guessed from the scores of a few blocks; a wrong guess costs a second scan, never the result.
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
  };
  SketchLayout layout;
  int group_size = 1;  // 1 ... 64
  float softmax_scale = 1;
  absl::Span<Head> heads;          // of one or more sequences
  std::byte* workspace = nullptr;  // [SketchScanWorkspaceBytes(heads)], 64-byte aligned
};

// Bytes of workspace for heads with these ranges. Most of it is touched only when a guess is wrong.
size_t SketchScanWorkspaceBytes(absl::Span<const SketchScanParams::Head> heads);

// How many tokens there are for a head to choose from.
int SketchScanTokens(const SketchLayout& layout, const SketchScanParams::Head& head);

// The result does not depend on the number of threads.
void SketchScan(const SketchScanParams& params, ComputePool& pool);
// The specification. Uses no workspace.
void SketchScanPlain(const SketchScanParams& params);

}  // namespace tokenbutler
