// RoundQueries for AVX-512: as sketch_queries.cc, with heads outside and blocks inside so that a
// query stays in registers, and one pack of 64 channels. Functions carry their instruction set as
// an attribute (see linear_bf16.cc).
#include <algorithm>
#include <cmath>

#include "engine/kernels/cpu/sketch_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TOKENBUTLER_AVX512 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")

namespace tokenbutler {
namespace {

constexpr int kLanes = 16;
constexpr int kChunk = 64;  // channels that are packed into one register

// Scales and centres (zero + scale * levels / 2) of a batch, padded with 0 to whole chunks.
struct WideRecords {
  alignas(64) float scales[kSketchBatchBlocks][kSketchMaxDim];
  alignas(64) float centres[kSketchBatchBlocks][kSketchMaxDim];
  alignas(64) float largest[kSketchMaxDim];  // scale of each channel
};

[[TOKENBUTLER_AVX512, gnu::always_inline]] inline __m512 LoadBf16(const std::byte* p) {
  const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16));
}

[[TOKENBUTLER_AVX512]] void Widen(const SketchLayout& layout, const std::byte* const* records,
                                  int num_blocks, WideRecords* wide) {
  const __m512 half = _mm512_set1_ps(0.5f * static_cast<float>(layout.levels()));
  const int dim = layout.padded_dim();
  for (int c = 0; c < (dim + kChunk - 1) / kChunk * kChunk; c += kLanes) {
    __m512 largest = _mm512_setzero_ps();
    for (int b = 0; b < num_blocks; ++b) {
      __m512 scale = _mm512_setzero_ps(), zero = _mm512_setzero_ps();
      if (c < dim) {
        scale = LoadBf16(records[b] + layout.scales_offset() + c * sizeof(BF16));
        zero = LoadBf16(records[b] + layout.zeros_offset() + c * sizeof(BF16));
      }
      largest = _mm512_maskz_max_ps(0xffff, largest, scale);
      _mm512_store_ps(wide->scales[b] + c, scale);
      _mm512_store_ps(wide->centres[b] + c, _mm512_fmadd_ps(scale, half, zero));
    }
    _mm512_store_ps(wide->largest + c, largest);
  }
}

// In each 128 bits: the sums of the lanes of a, then b, c, d.
[[TOKENBUTLER_AVX512, gnu::always_inline]] inline __m512 SumsOfFour(__m512 a, __m512 b, __m512 c,
                                                                    __m512 d) {
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b),
                                                    _mm512_maskz_unpackhi_ps(0xffff, a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, c, d),
                                                    _mm512_maskz_unpackhi_ps(0xffff, c, d)));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, ab, cd)),
                       _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, ab, cd)));
}

// The sums of the lanes of each of eight registers.
[[TOKENBUTLER_AVX512, gnu::always_inline]] inline __m256 LaneSums(const __m512* v) {
  const __m512 low = SumsOfFour(v[0], v[1], v[2], v[3]);
  const __m512 high = SumsOfFour(v[4], v[5], v[6], v[7]);
  // Of the four parts of 128 bits of each: the first two and the last two, then even and odd ones.
  const __m512 both = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, low, high, 0x44),
                                    _mm512_maskz_shuffle_f32x4(0xffff, low, high, 0xee));
  const __m512 even = _mm512_maskz_shuffle_f32x4(0xffff, both, both, 0x88);
  const __m512 odd = _mm512_maskz_shuffle_f32x4(0xffff, both, both, 0xdd);
  return _mm512_maskz_extractf32x8_ps(0xff, _mm512_add_ps(even, odd), 0);
}

// The largest lane.
[[TOKENBUTLER_AVX512, gnu::always_inline]] inline float LargestOf(__m512 v) {
  const __m256 m8 = _mm256_max_ps(_mm512_maskz_extractf32x8_ps(0xff, v, 0),
                                  _mm512_maskz_extractf32x8_ps(0xff, v, 1));
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

template <SketchRounding kRounding>
[[TOKENBUTLER_AVX512, gnu::always_inline]] inline float FactorOf(const float* query,
                                                                 const float* largest, int dim) {
  // No code is above 127, nor the sum of four above 255: rounding adds a half to each of them, and
  // floats round too.
  const __m512 of_four = _mm512_set1_ps(127.0f / 252);
  __m512 v = _mm512_setzero_ps();
  for (int c = 0; c < dim; c += kLanes) {
    const __m512 x =
        _mm512_abs_ps(_mm512_mul_ps(_mm512_load_ps(query + c), _mm512_load_ps(largest + c)));
    v = _mm512_maskz_max_ps(0xffff, v, x);
    if (kRounding != SketchRounding::kTables) continue;
    const __m512 x2 = _mm512_add_ps(x, _mm512_maskz_shuffle_f32x4(0xffff, x, x, 0x4e));
    const __m512 x4 = _mm512_add_ps(x2, _mm512_maskz_shuffle_f32x4(0xffff, x2, x2, 0xb1));
    v = _mm512_maskz_max_ps(0xffff, v, _mm512_mul_ps(x4, of_four));
  }
  const float factor = LargestOf(v) / 127;
  const float largest_sum = factor * 2 * kSketchSumBase;
  return std::isfinite(1 / factor) && std::isfinite(largest_sum) ? factor : 0.0f;
}

// Channels [c, c + 64) of one query and one block: writes the codes, adds their sum (for tables:
// the sum of their absolute values, so that bases are those of the least sums) to the lanes of
// `code_sum` and query * centre to those of `sum`.
template <SketchRounding kRounding>
[[TOKENBUTLER_AVX512, gnu::always_inline]] inline void RoundChunk(
    const __m512* query, const __m512* scaled, const float* scales, const float* centres,
    int8_t* codes, __m512i* code_sum, __m512* sum) {
  // Packs work within 128 bits; this puts the words in order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i x[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_maskz_cvtps_epi32(0xffff,
                                    _mm512_mul_ps(scaled[i], _mm512_load_ps(scales + i * kLanes)));
    *sum = _mm512_fmadd_ps(query[i], _mm512_load_ps(centres + i * kLanes), *sum);
  }
  const __m512i low = _mm512_packs_epi32(x[0], x[1]), high = _mm512_packs_epi32(x[2], x[3]);
  const __m512i packed = _mm512_packs_epi16(low, high);
  _mm512_store_si512(codes, _mm512_maskz_permutexvar_epi32(0xffff, order, packed));
  const __m512i ones = _mm512_set1_epi8(1);
  *code_sum = kRounding == SketchRounding::kTables
                  ? _mm512_dpbusd_epi32(*code_sum, _mm512_abs_epi8(packed), ones)
                  : _mm512_dpbusd_epi32(*code_sum, ones, packed);
}

// One head, all blocks of the batch.
// Missing blocks are rounded too (copies of the first): a loop of fixed length keeps all sums in
// registers.
template <SketchRounding kRounding>
[[TOKENBUTLER_AVX512, gnu::always_inline]] inline void RoundHead(const WideRecords& wide,
                                                                 const float* queries, int dim,
                                                                 int h, float factor,
                                                                 float half_levels, float lse,
                                                                 RoundedQueries* rounded) {
  const float inverse = factor > 0 ? 1 / factor : 0.0f, shift = factor * half_levels;
  __m512 sums[kSketchBatchBlocks];
  __m512i code_sums[kSketchBatchBlocks];
  for (int b = 0; b < kSketchBatchBlocks; ++b) {
    sums[b] = _mm512_setzero_ps();
    code_sums[b] = _mm512_setzero_si512();
  }
  for (int c = 0; c < dim; c += kChunk) {
    __m512 query[4], scaled[4];
    for (int i = 0; i < 4; ++i) {
      query[i] = _mm512_load_ps(queries + c + i * kLanes);
      scaled[i] = _mm512_mul_ps(query[i], _mm512_set1_ps(inverse));
    }
#pragma GCC unroll 8
    for (int b = 0; b < kSketchBatchBlocks; ++b) {
      RoundChunk<kRounding>(query, scaled, wide.scales[b] + c, wide.centres[b] + c,
                            rounded->codes[b][h] + c, &code_sums[b], &sums[b]);
    }
  }
  for (int b = 0; b < kSketchBatchBlocks; ++b) {
    sums[b] = _mm512_fnmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, code_sums[b]),
                               _mm512_set1_ps(shift), sums[b]);
  }
  // Where sums begin is taken off last, since it rounds.
  const float begin = kRounding == SketchRounding::kTables ? factor * kSketchSumBase : 0;
  _mm256_store_ps(
      rounded->bases[h],
      _mm256_sub_ps(_mm256_sub_ps(LaneSums(sums), _mm256_set1_ps(lse)), _mm256_set1_ps(begin)));
}

template <SketchRounding kRounding>
[[TOKENBUTLER_AVX512]] void RoundQueriesFor(const SketchLayout& layout, const SketchHeads& heads,
                                            const std::byte* const* records, int num_blocks,
                                            RoundedQueries* rounded) {
  const int dim = layout.padded_dim();
  WideRecords wide;
  Widen(layout, records, num_blocks, &wide);
  for (int b = num_blocks; b < kSketchBatchBlocks; ++b) {
    std::copy_n(wide.scales[0], kSketchMaxDim, wide.scales[b]);
    std::copy_n(wide.centres[0], kSketchMaxDim, wide.centres[b]);
  }
  const float half_levels = 0.5f * static_cast<float>(layout.levels());
  // All first: their latency would be felt between heads.
  for (int h = 0; h < heads.num_heads; ++h) {
    rounded->factors[h] = FactorOf<kRounding>(heads.queries[h], wide.largest, dim);
  }
  for (int h = 0; h < heads.num_heads; ++h) {
    RoundHead<kRounding>(wide, heads.queries[h], dim, h, rounded->factors[h], half_levels,
                         heads.lse[h], rounded);
  }
}

}  // namespace

void RoundQueriesVnni(const SketchLayout& layout, const SketchHeads& heads,
                      const std::byte* const* records, int num_blocks, SketchRounding rounding,
                      RoundedQueries* rounded) {
  const auto round = rounding == SketchRounding::kScores ? RoundQueriesFor<SketchRounding::kScores>
                                                         : RoundQueriesFor<SketchRounding::kTables>;
  round(layout, heads, records, num_blocks, rounded);
}

}  // namespace tokenbutler

#else  // no such instruction: HasVnni() is false

namespace tokenbutler {

void RoundQueriesVnni(const SketchLayout&, const SketchHeads&, const std::byte* const*, int,
                      SketchRounding, RoundedQueries*) {}

}  // namespace tokenbutler

#endif
