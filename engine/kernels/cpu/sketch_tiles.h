#pragma once

#include <algorithm>
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
// Kernels begin to load scales and zeros this many blocks before they use them: whole batches,
// since these are read when a batch begins.
constexpr int kSketchScalesAhead = 2 * kSketchBatchBlocks;
// And codes about this many bytes before. Nearer, reading two threads' worth of memory at once is
// not fast enough: no prefetcher of the processor helps where pages or runs of records end.
constexpr int kSketchCodeBytesAhead = 12 << 10;
// In blocks.
inline int SketchCodesAhead(const SketchLayout& layout) {
  const int code_bytes = static_cast<int>(layout.record_bytes() - layout.codes_offset());
  return std::clamp(kSketchCodeBytesAhead / code_bytes, 2, 12);
}

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
  float factors[kSketchHeads];
  alignas(64) float bases[kSketchHeads][kSketchBatchBlocks];
};

// Rounds for `num_blocks` <= kSketchBatchBlocks records (without VNNI: kScores). One factor per
// head serves all of them.
void RoundQueries(const SketchLayout& layout, const SketchHeads& heads,
                  const std::byte* const* records, int num_blocks, RoundedQueries* rounded);
void RoundQueriesVnni(const SketchLayout& layout, const SketchHeads& heads,
                      const std::byte* const* records, int num_blocks, SketchRounding rounding,
                      RoundedQueries* rounded);  // REQUIRES: HasVnni()

// Bit t: scores[t] of a tile is not below `threshold`. NaN is not.
inline uint16_t PassedOf(const float* scores, float threshold) {
  unsigned passed = 0;
  for (int t = 0; t < SketchLayout::kSubBlockTokens; ++t) {
    passed |= static_cast<unsigned>(!(scores[t] < threshold)) << t;
  }
  return static_cast<uint16_t>(passed);
}

// The tiles of up to kSketchBatchBlocks blocks.
struct SketchTiles {
  const SketchLayout* layout = nullptr;
  int num_heads = 0;
  int num_blocks = 0;
  // [num_blocks + kSketchScalesAhead]: kernels begin to load the scales of the block
  // kSketchScalesAhead after the one they score, and the codes of that `codes_ahead` after it.
  const std::byte* const* records = nullptr;
  int codes_ahead = 0;  // SketchCodesAhead(*layout)
  const RoundedQueries* queries = nullptr;
  bool accumulate = false;     // scores become the maximum of themselves and the new ones
  float threshold = 0;         // for `passed`
  float* scores = nullptr;     // [num_blocks * block_size], 64-byte aligned
  uint16_t* passed = nullptr;  // [num_blocks * sub_blocks]: PassedOf each tile
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
