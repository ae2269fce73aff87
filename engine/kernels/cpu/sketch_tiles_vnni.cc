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

inline void Fetch(const std::byte* from, int bytes) {
  for (int at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(from + at);
}

// Field `n` of each byte of a line: the codes of 4 channels of 16 tokens.
template <int kBits>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m512i Field(__m512i line, int n) {
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
  const __m512i shifted = n == 0 ? line : _mm512_srli_epi16(line, n * kBits);
  return _mm512_and_si512(shifted, mask);
}

// Scores two tiles of a block with the same rounded queries: these are loaded once for both. Or
// one, where a block has an odd number.
template <int kBits, int kHeads, int kTiles>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline void ScoreSome(const SketchTiles& p, int block,
                                                               const std::byte* const* tiles,
                                                               float* scores) {
  constexpr int kFields = 8 / kBits;
  const int8_t* queries = p.queries->codes[block][0];
  __m512i sums[kHeads][kTiles];
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kTiles; ++t) sums[h][t] = _mm512_setzero_si512();
  }
  const int num_lines = p.padded_dim / (4 * kFields);
  for (int i = 0; i < num_lines; ++i) {
    __m512i lines[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      lines[t] = _mm512_load_si512(tiles[t] + i * kLineBytes);
      __builtin_prefetch(tiles[t + kSketchTilesAhead - kTiles] + i * kLineBytes);
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
    Fetch(p.fetch[block], p.fetch_bytes);
    int t = 0;
    for (; t + 2 <= num_tiles; t += 2) {
      ScoreSome<kBits, kHeads, 2>(p, block, tiles + t, scores + t * kTokens);
    }
    if (t < num_tiles) ScoreSome<kBits, kHeads, 1>(p, block, tiles + t, scores + t * kTokens);
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

// Word `low` of the 32 bytes at `words` in lanes 0-7, word `high` in lanes 8-15.
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m512i TwoWords(const int8_t* words, int low,
                                                                 int high) {
  const __m512i order = _mm512_setr_epi32(low, low, low, low, low, low, low, low, high, high, high,
                                          high, high, high, high, high);
  const __m512i both = _mm512_maskz_broadcast_i32x8(
      0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  return _mm512_maskz_permutexvar_epi32(0xffff, order, both);
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
        means[h] = _mm512_dpbusd_epi32(
            means[h], mean, TwoWords(codes + h * kSketchMaxDim + c, /*low=*/n, /*high=*/n + 2));
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
        variances[h] = _mm512_dpbusd_epi32(
            variances[h], variance,
            TwoWords(weights + h * kSketchMaxDim + c, /*low=*/n, /*high=*/n + 4));
      }
    }
  }
  const float mean_step = p.layout->mean_step();
  const float deviations = 2 * p.layout->std_step() * kSketchRootOfSquareUnit;
  __m256 best;
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
    const float factor = p.queries->factors[block][h];
    // sqrt(x) = x / sqrt(x) of an integer; the approximation is good to 14 bits.
    const __m256 variance = SumOfHalves(variances[h]);
    const __m256 root = _mm256_mul_ps(
        variance, _mm256_maskz_rsqrt14_ps(0xff, _mm256_max_ps(variance, _mm256_set1_ps(1))));
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
    Fetch(p.fetch[block], p.fetch_bytes);
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
