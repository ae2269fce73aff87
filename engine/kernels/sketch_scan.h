#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

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
    int k = 0;                       // how many to choose; fewer when end - begin is less
    // What position p is called in `tokens`: token_ids[p], ascending; null: p itself. For scans of
    // gathered keys.
    const int32_t* token_ids = nullptr;

    // Outputs.
    int32_t* tokens = nullptr;  // [k + 16] ascending; the last 16 are scratch
    float* scores = nullptr;    // [k] scores of `tokens`, or null
    int num_selected = 0;       // min(k, end - begin)
    // In: scores below this will not be chosen, if the guess is right; out: the guess for the next
    // step. A wrong guess costs time, never the result. NaN: no guess.
    float threshold = std::numeric_limits<float>::quiet_NaN();
  };
  SketchLayout layout;
  int group_size = 1;  // 1 ... 64
  float softmax_scale = 1;
  // Below 1, staged scans: only the best of a head's blocks by SketchBlockEstimates are looked
  // into, this fraction of them, and only the best sub-blocks of these by SketchEstimates are
  // scored, this fraction of all (at least enough for k tokens). With scan_fraction >=
  // block_fraction, all sub-blocks of the best blocks are scored and no statistics are read.
  float block_fraction = 1;
  float scan_fraction = 1;
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

// Makes a sketch of chosen tokens out of the sketch of all: later steps re-rank the candidates
// (SketchScan with token_ids) at a cost that depends on their number alone. Codes of tokens of
// different blocks have different scales, so the chosen keys are rounded again: to four bits, a
// step of a fifth of the two-bit one, this hardly changes scores.
struct SketchGatherParams {
  struct Head {
    SketchedKeys keys;
    const int32_t* tokens = nullptr;  // [num_tokens] ascending
    int num_tokens = 0;
    // [ceil(num_tokens / gathered.block_size)] records one after the other, 64-byte aligned.
    // The last one is filled up with copies of the last token.
    std::byte* records = nullptr;
  };
  SketchLayout layout;  // of the heads' keys
  // The same head_dim; bits 4 recommended; block_size at most 128.
  SketchLayout gathered;
  absl::Span<const Head> heads;
};
void SketchGather(const SketchGatherParams& params, ComputePool& pool);

}  // namespace tokenbutler
