// vpdpbusd for scans of low-bit keys. As in linear_bf16.cc, the functions carry their instruction
// set as an attribute instead of the file as a compiler flag.
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

// Scores two tiles of a block with the same rounded queries: these are loaded once for both.
template <int kBits, int kHeads>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline void ScorePair(const SketchTiles& p, int block,
                                                               const std::byte* const* tiles,
                                                               bool has_second, float* scores) {
  constexpr int kFields = 8 / kBits;
  const int8_t* queries = p.queries->codes[block][0];
  const std::byte* first = tiles[0];
  const std::byte* second = tiles[has_second ? 1 : 0];
  const std::byte* ahead[2] = {tiles[kSketchTilesAhead - 2], tiles[kSketchTilesAhead - 1]};
  __m512i sums[kHeads][2];
  for (int h = 0; h < kHeads; ++h) sums[h][0] = sums[h][1] = _mm512_setzero_si512();
  const int num_lines = p.padded_dim / (4 * kFields);
  for (int i = 0; i < num_lines; ++i) {
    const __m512i line0 = _mm512_load_si512(first + i * kLineBytes);
    const __m512i line1 = _mm512_load_si512(second + i * kLineBytes);
    _mm_prefetch(reinterpret_cast<const char*>(ahead[0] + i * kLineBytes), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead[1] + i * kLineBytes), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int n = 0; n < kFields; ++n) {
      const __m512i codes0 = Field<kBits>(line0, n);
      const __m512i codes1 = Field<kBits>(line1, n);
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        int word;
        __builtin_memcpy(&word, queries + h * kSketchMaxDim + (i * kFields + n) * 4, 4);
        const __m512i query = _mm512_set1_epi32(word);
        sums[h][0] = _mm512_dpbusd_epi32(sums[h][0], codes0, query);
        sums[h][1] = _mm512_dpbusd_epi32(sums[h][1], codes1, query);
      }
    }
  }
  for (int t = 0; t < 2; ++t) {
    __m512 best;
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const __m512 score = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, sums[h][t]),
                                           _mm512_set1_ps(p.queries->factors[block][h]),
                                           _mm512_set1_ps(p.queries->bases[block][h]));
      best = h == 0 ? score : _mm512_maskz_max_ps(0xffff, best, score);
    }
    float* out = scores + t * kTokens;
    if (p.accumulate) best = _mm512_maskz_max_ps(0xffff, best, _mm512_load_ps(out));
    _mm512_store_ps(out, best);
  }
}

template <int kBits, int kHeads>
[[TOKENBUTLER_VNNI]] void ScoreTilesOf(const SketchTiles& p) {
  const std::byte* const* tiles = p.tiles;
  float* scores = p.scores;
  for (int block = 0; block < p.num_blocks; ++block) {
    const int num_tiles = p.tiles_of_block[block];
    for (int t = 0; t < num_tiles; t += 2) {
      ScorePair<kBits, kHeads>(p, block, tiles + t, t + 1 < num_tiles, scores + t * kTokens);
    }
    tiles += num_tiles;
    scores += num_tiles * kTokens;
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
  if (p.bits == 1) return ScoreTilesOfBits<1>(p);
  if (p.bits == 2) return ScoreTilesOfBits<2>(p);
  ScoreTilesOfBits<4>(p);
}

namespace {

// One word in lanes 0-7, another in lanes 8-15.
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m512i TwoWords(const int8_t* low,
                                                                 const int8_t* high) {
  int words[2];
  __builtin_memcpy(&words[0], low, 4);
  __builtin_memcpy(&words[1], high, 4);
  return _mm512_mask_set1_epi32(_mm512_set1_epi32(words[0]), 0xff00, words[1]);
}

[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m256 SumOfHalves(__m512i v) {
  return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, v, 0),
                                             _mm512_maskz_extracti64x4_epi64(0xf, v, 1)));
}

// Eight sub-blocks whose statistics begin at `lines`.
template <int kHeads>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m256 EstimateEight(const SketchStatistics& p,
                                                                     int block,
                                                                     const std::byte* lines) {
  const __m512i squares = _mm512_maskz_broadcast_i32x4(
      0xffff, _mm_setr_epi8(0, 1, 4, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  const int8_t* codes = p.queries->codes[block][0];
  const int8_t* weights = p.queries->squares[block][0];
  const int dim = p.layout->statistics_dim();
  __m512i means[kHeads], variances[kHeads];
  for (int h = 0; h < kHeads; ++h) means[h] = variances[h] = _mm512_setzero_si512();
  for (int c = 0; c < dim; c += 16) {
    const __m512i line = _mm512_load_si512(lines + c * 4);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      const __m512i mean = Field<4>(line, n);
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        const int8_t* query = codes + h * kSketchMaxDim + c + n * 4;
        means[h] = _mm512_dpbusd_epi32(means[h], mean, TwoWords(query, query + 8));
      }
    }
  }
  lines += dim * 4;
  for (int c = 0; c < dim; c += 32) {
    const __m512i line = _mm512_load_si512(lines + c * 2);
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const __m512i variance = _mm512_shuffle_epi8(squares, Field<2>(line, n));
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        const int8_t* query = weights + h * kSketchMaxDim + c + n * 4;
        variances[h] = _mm512_dpbusd_epi32(variances[h], variance, TwoWords(query, query + 16));
      }
    }
  }
  const float mean_step = p.layout->mean_step();
  const float deviations = 2 * p.layout->std_step() * kSketchRootOfSquareUnit;
  __m256 best;
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
    const float factor = p.queries->factors[block][h];
    const __m256 root = _mm256_sqrt_ps(SumOfHalves(variances[h]));
    __m256 estimate = _mm256_fmadd_ps(SumOfHalves(means[h]), _mm256_set1_ps(factor * mean_step),
                                      _mm256_set1_ps(p.queries->bases[block][h]));
    estimate = _mm256_fmadd_ps(root, _mm256_set1_ps(factor * deviations), estimate);
    best = h == 0 ? estimate : _mm256_max_ps(best, estimate);
  }
  return best;
}

template <int kHeads>
[[TOKENBUTLER_VNNI]] void EstimateOf(const SketchStatistics& p) {
  const int sub_blocks = p.layout->sub_blocks();
  const size_t group_bytes = p.layout->means_bytes() + p.layout->deviations_bytes();
  for (int block = 0; block < p.num_blocks; ++block) {
    const std::byte* lines = p.records[block] + p.layout->statistics_offset();
    for (int s = 0; s < sub_blocks; s += 8, lines += group_bytes) {
      const __mmask8 mask = sub_blocks - s >= 8 ? 0xff : (1u << (sub_blocks - s)) - 1;
      float* out = p.estimates + block * sub_blocks + s;
      __m256 best = EstimateEight<kHeads>(p, block, lines);
      if (p.accumulate) best = _mm256_max_ps(best, _mm256_maskz_loadu_ps(mask, out));
      _mm256_mask_storeu_ps(out, mask, best);
    }
  }
}

}  // namespace

void EstimateSubBlocksVnni(const SketchStatistics& p) {
  using Estimate = void (*)(const SketchStatistics&);
  static constexpr Estimate kEstimates[kSketchHeads] = {EstimateOf<1>, EstimateOf<2>, EstimateOf<3>,
                                                        EstimateOf<4>, EstimateOf<5>, EstimateOf<6>,
                                                        EstimateOf<7>, EstimateOf<8>};
  kEstimates[p.num_heads - 1](p);
}

}  // namespace tokenbutler

#else  // no such instruction: HasVnni() is false

namespace tokenbutler {

bool HasVnni() { return false; }
void ScoreTilesVnni(const SketchTiles&) {}
void EstimateSubBlocksVnni(const SketchStatistics&) {}

}  // namespace tokenbutler

#endif
