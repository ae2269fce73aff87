#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// What the scans of low-bit keys are made of. A *tile* is the codes of one sub-block: 16 tokens.

// Query heads that go through a tile together; larger groups take several passes.
constexpr int kSketchHeads = 8;
// Blocks whose queries are rounded together.
constexpr int kSketchBatchBlocks = 8;
constexpr int kSketchMaxDim = 256;
// Tiles that a kernel fetches ahead.
constexpr int kSketchTilesAhead = 32;
// The same of small tiles; entries of `tiles` beyond the last that must be readable.
constexpr int kSketchSmallTilesAhead = 48;

// Up to kSketchHeads query heads, times softmax_scale, and their lse.
struct SketchHeads {
  int num_heads = 0;
  alignas(64) float queries[kSketchHeads][kSketchMaxDim];  // [num_heads][head_dim], padded with 0
                                                           // to multiples of 64
  float lse[kSketchHeads];
};

// What queries are rounded for.
enum class SketchRounding {
  kScores,
  // Scores from tables of the sums of channels c, c + 4, c + 8 and c + 12 of 16, where the least
  // sum is 0 and all fit into a byte: factors are such that no four |codes| sum to more than 255,
  // and bases are for sums of table entries that begin at kSketchSumBase. One-bit codes only.
  kTables,
};
// The bits of this float plus an integer are the bits of their sum: no conversion is needed. Bases
// are rounded by it, by half a factor at most.
constexpr float kSketchSumBase = 8388608;

// These heads' queries times each block's scales, rounded to int8:
//   logit[t] - lse = factor * sum_c codes[c] * code[t][c] + base
struct RoundedQueries {
  // [block][head][padded_dim, rounded up to vectors]; 0 beyond head_dim
  alignas(64) int8_t codes[kSketchBatchBlocks][kSketchHeads][kSketchMaxDim];
  float factors[kSketchBatchBlocks][kSketchHeads];
  float bases[kSketchBatchBlocks][kSketchHeads];
};

// Rounds for `num_blocks` <= kSketchBatchBlocks records (without VNNI: kScores). One factor per
// head serves all of them.
void RoundQueries(const SketchLayout& layout, const SketchHeads& heads,
                  const std::byte* const* records, int num_blocks, RoundedQueries* rounded);
void RoundQueriesVnni(const SketchLayout& layout, const SketchHeads& heads,
                      const std::byte* const* records, int num_blocks, SketchRounding rounding,
                      RoundedQueries* rounded);  // REQUIRES: HasVnni()

// Scores that are not below `threshold`, NaN included, and what positions they have, in order:
// tile i holds positions [positions[i], positions[i] + 16), of which those within [begin, end)
// count. The outputs have room for 16 more than are written. Returns how many.
int CollectAbove(const float* scores, const int32_t* positions, int num_tiles, int begin, int end,
                 float threshold, float* out_scores, int32_t* out_positions);

// Some tiles of each of up to kSketchBatchBlocks blocks, one after the other.
struct SketchTiles {
  int padded_dim = 0;
  int bits = 0;
  int num_heads = 0;
  int num_blocks = 0;
  const int* tiles_of_block = nullptr;      // [num_blocks]
  const std::byte* const* tiles = nullptr;  // [sum of tiles_of_block + kSketchSmallTilesAhead]
  // Records whose first fetch_bytes a kernel begins to load meanwhile: one per block.
  const std::byte* const* fetch = nullptr;  // [num_blocks]
  int fetch_bytes = 0;
  const RoundedQueries* queries = nullptr;
  bool accumulate = false;  // scores become the maximum of themselves and the new ones
  float* scores = nullptr;  // [16 * sum of tiles_of_block], 64-byte aligned
};
void ScoreTilesPortable(const SketchTiles& tiles);
void ScoreTilesAvx2(const SketchTiles& tiles);  // REQUIRES: KernelTarget() >= kAvx2
void ScoreTilesVnni(const SketchTiles& tiles);  // REQUIRES: HasVnni()
// REQUIRES: HasVbmi(), one-bit codes, queries rounded for kTables
void ScoreTilesVbmi(const SketchTiles& tiles);
// AVX-512 VNNI (vpdpbusd) is there, which no CpuTarget tells.
bool HasVnni();
// AVX-512 VBMI (vpermb) as well, and AllowVbmi(false) was not called last.
bool HasVbmi();
// For tests: false lets a machine with VBMI do as one without. Call it while no kernel runs.
void AllowVbmi(bool allowed);

}  // namespace tokenbutler
