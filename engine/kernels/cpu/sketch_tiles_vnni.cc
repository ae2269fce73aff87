// vpdpbusd for scans of low-bit keys. As in linear_bf16.cc, the functions carry their instruction
// set as an attribute instead of the file as a compiler flag.
#include "base/prefetch.h"
#include "engine/kernels/cpu/sketch_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TOKENBUTLER_VNNI gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")

namespace tokenbutler {
namespace {

// Zero-masking forms of some instructions: g++ 12 warns about the undefined pass-through operand of
// the plain ones.
constexpr int kTokens = 16;  // of a tile
constexpr int kLineBytes = 64;

// Field `n` of each byte of a line: the codes of 4 channels of 16 tokens.
template <int kBits>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m512i Field(__m512i line, int n) {
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
  const __m512i shifted = n == 0 ? line : _mm512_srli_epi16(line, n * kBits);
  return _mm512_and_si512(shifted, mask);
}

// Scores two tiles of a block from `tile` on with the same rounded queries: these are loaded once
// for both. Or one, where a block has an odd number. `offset`: of the tile's codes in a record.
template <int kBits, int kHeads, int kTiles>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline void ScoreSome(const SketchTiles& p, int block,
                                                               int tile, size_t offset) {
  constexpr int kFields = 8 / kBits;
  const int8_t* queries = p.queries->codes[block][0];
  __m512i sums[kHeads][kTiles];
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kTiles; ++t) sums[h][t] = _mm512_setzero_si512();
  }
  const int num_lines = p.layout->padded_dim() / (4 * kFields);
  const std::byte* codes_at = p.records[block] + offset;
  const std::byte* ahead = p.records[block + p.codes_ahead] + offset;
  for (int i = 0; i < num_lines; ++i) {
    __m512i lines[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      const int at = (t * num_lines + i) * kLineBytes;
      lines[t] = _mm512_load_si512(codes_at + at);
      PrefetchToL2(ahead + at);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kFields; ++n) {
      __m512i codes[kTiles];
      for (int t = 0; t < kTiles; ++t) codes[t] = Field<kBits>(lines[t], n);
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        int word;
        __builtin_memcpy(&word, queries + h * kSketchMaxDim + (i * kFields + n) * 4, 4);
        const __m512i query = _mm512_set1_epi32(word);
        for (int t = 0; t < kTiles; ++t) {
          sums[h][t] = _mm512_dpbusd_epi32(sums[h][t], codes[t], query);
        }
      }
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    __m512 best;
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const __m512 score = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, sums[h][t]),
                                           _mm512_set1_ps(p.queries->factors[h]),
                                           _mm512_set1_ps(p.queries->bases[h][block]));
      best = h == 0 ? score : _mm512_maskz_max_ps(0xffff, best, score);
    }
    float* out = p.scores + (tile + t) * kTokens;
    if (p.accumulate) best = _mm512_maskz_max_ps(0xffff, best, _mm512_load_ps(out));
    _mm512_store_ps(out, best);
    p.passed[tile + t] = _mm512_cmp_ps_mask(best, _mm512_set1_ps(p.threshold), _CMP_NLT_UQ);
  }
}

template <int kBits, int kHeads>
[[TOKENBUTLER_VNNI]] void ScoreTilesOf(const SketchTiles& p) {
  const int num_tiles = p.layout->sub_blocks();
  const size_t codes_offset = p.layout->codes_offset(), tile_bytes = p.layout->sub_block_bytes();
  for (int block = 0; block < p.num_blocks; ++block) {
    const std::byte* fetch = p.records[block + kSketchScalesAhead];
    for (size_t at = 0; at < codes_offset; at += kLineBytes) PrefetchToL2(fetch + at);
    int t = 0;
    for (; kHeads <= 3 && t + 4 <= num_tiles; t += 4) {
      ScoreSome<kBits, kHeads, 4>(p, block, block * num_tiles + t, codes_offset + t * tile_bytes);
    }
    for (; t + 2 <= num_tiles; t += 2) {
      ScoreSome<kBits, kHeads, 2>(p, block, block * num_tiles + t, codes_offset + t * tile_bytes);
    }
    if (t < num_tiles) {
      ScoreSome<kBits, kHeads, 1>(p, block, block * num_tiles + t, codes_offset + t * tile_bytes);
    }
  }
}

template <int kBits>
void ScoreTilesOfBits(const SketchTiles& p) {
  using Score = void (*)(const SketchTiles&);
  static constexpr Score kScores[kSketchHeads] = {ScoreTilesOf<kBits, 1>, ScoreTilesOf<kBits, 2>,
                                                  ScoreTilesOf<kBits, 3>, ScoreTilesOf<kBits, 4>,
                                                  ScoreTilesOf<kBits, 5>, ScoreTilesOf<kBits, 6>,
                                                  ScoreTilesOf<kBits, 7>, ScoreTilesOf<kBits, 8>};
  kScores[p.num_heads - 1](p);
}

}  // namespace

bool HasVnni() {
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0;
  return has;
}

void ScoreTilesVnni(const SketchTiles& p) {
  if (p.layout->bits == 1) return ScoreTilesOfBits<1>(p);
  if (p.layout->bits == 2) return ScoreTilesOfBits<2>(p);
  ScoreTilesOfBits<4>(p);
}

}  // namespace tokenbutler

#else  // no such instruction: HasVnni() is false

namespace tokenbutler {

bool HasVnni() { return false; }
void ScoreTilesVnni(const SketchTiles&) {}

}  // namespace tokenbutler

#endif
