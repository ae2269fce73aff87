// vpdpbusd for projected keys: Highway 1.0.3 does not know it. The functions carry their
// instruction set as an attribute instead of the file as a compiler flag (see linear_bf16.cc).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/prefetch.h"
#include "engine/kernels/cpu/projected_logits.h"
#include "engine/kernels/kernel_target.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TOKENBUTLER_VNNI gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace tokenbutler {
namespace {

// kLines: lines of a sub-block when they fit in registers, 0: any number.
template <int kLines, bool kMax>
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline void Logits(const ProjectedScoresParams& p,
                                                            const PreparedQueries& prepared,
                                                            const std::byte* record,
                                                            const std::byte* next, int first,
                                                            int last, float* out) {
  const int num_lines = kLines > 0 ? kLines : p.layout.lines();
  const int dim = p.layout.dim;
  const size_t sub_bytes = p.layout.sub_block_bytes();
  const size_t codes = p.layout.codes_offset();
  for (int s = first; s < last; ++s) {
    const std::byte* at = record + codes + s * sub_bytes;
    const std::byte* ahead = next + codes + s * sub_bytes;
    __m512i lines[kLines > 0 ? kLines : 1];
    for (int i = 0; i < num_lines; ++i) {
      if constexpr (kLines > 0) lines[i] = _mm512_load_si512(at + i * 64);
      PrefetchToL1(ahead + i * 64);
    }
    float* row = out + static_cast<ptrdiff_t>(s - first) * 16;
    __m512 best = _mm512_set1_ps(-__builtin_inff());
    for (int h = 0; h < p.group_size; ++h) {
      const int8_t* weights = prepared.weights8 + static_cast<size_t>(h) * dim;
      __m512i dot = _mm512_setzero_si512();
      for (int i = 0; i < num_lines; ++i) {
        int32_t four;
        std::memcpy(&four, weights + 4 * i, 4);
        const __m512i line = kLines > 0 ? lines[kLines > 0 ? i : 0]
                                        : _mm512_load_si512(at + static_cast<ptrdiff_t>(i) * 64);
        dot = _mm512_dpbusd_epi32(dot, line, _mm512_set1_epi32(four));
      }
      const __m512 logits =
          _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, dot), _mm512_set1_ps(prepared.step[h]),
                          _mm512_set1_ps(prepared.base[h]));
      if constexpr (kMax) {
        best = _mm512_maskz_max_ps(0xffff, best, logits);
      } else {
        _mm512_storeu_ps(row + static_cast<ptrdiff_t>(h) * (last - first) * 16, logits);
      }
    }
    if constexpr (kMax) _mm512_storeu_ps(row, best);
  }
}

template <bool kMax>
[[TOKENBUTLER_VNNI]] void LogitsOf(const ProjectedScoresParams& p, const PreparedQueries& prepared,
                                   const std::byte* record, const std::byte* next, int first,
                                   int last, float* out) {
  switch (p.layout.lines()) {
    case 4:
      return Logits<4, kMax>(p, prepared, record, next, first, last, out);
    case 8:
      return Logits<8, kMax>(p, prepared, record, next, first, last, out);
    default:
      return Logits<0, kMax>(p, prepared, record, next, first, last, out);
  }
}

// The sum (maximum) of the lanes. Not _mm512_reduce_*: g++ 12 warns about their undefined operands.
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline __m128 Upper(__m256 v) {
  return _mm256_extractf128_ps(v, 1);
}
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline float SumLanes(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, v, 0),
                                    _mm512_maskz_extractf32x8_ps(0xff, v, 1));
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), Upper(half));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
[[TOKENBUTLER_VNNI, gnu::always_inline]] inline float MaxLane(__m512 v) {
  const __m256 half = _mm256_max_ps(_mm512_maskz_extractf32x8_ps(0xff, v, 0),
                                    _mm512_maskz_extractf32x8_ps(0xff, v, 1));
  __m128 max = _mm_max_ps(_mm256_castps256_ps128(half), Upper(half));
  max = _mm_max_ps(max, _mm_movehl_ps(max, max));
  return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

}  // namespace

bool HasByteDot() {
  static const bool has_it = __builtin_cpu_supports("avx512vnni") != 0;
  return has_it && KernelTarget() >= CpuTarget::kAvx512Bf16;
}

[[TOKENBUTLER_VNNI]] void PrepareByteDot(const ProjectedScoresParams& p,
                                         const ProjectedScoresParams::Head& head,
                                         const std::byte* record, PreparedQueries* prepared) {
  const int dim = p.layout.dim;
  const auto* scales = reinterpret_cast<const float*>(record);
  const auto* zeros = reinterpret_cast<const float*>(record + p.layout.zeros_offset());
  const __m512 scale = _mm512_set1_ps(p.scale);
  // Codes are weighed from their middle, so that what rounding the weights costs has no bias.
  const __m512 middle = _mm512_set1_ps(128.0f);
  for (int h = 0; h < p.group_size; ++h) {
    const float* query = head.queries + static_cast<size_t>(h) * dim;
    float* weights = prepared->weights + static_cast<size_t>(h) * dim;
    int8_t* weights8 = prepared->weights8 + static_cast<size_t>(h) * dim;
    __m512 largest = _mm512_setzero_ps(), at_middle = _mm512_setzero_ps();
    for (int c = 0; c < dim; c += 16) {
      const __m512 q = _mm512_mul_ps(_mm512_loadu_ps(query + c), scale);
      const __m512 levels = _mm512_loadu_ps(scales + c);
      const __m512 weight = _mm512_mul_ps(q, levels);
      at_middle = _mm512_fmadd_ps(q, _mm512_fmadd_ps(levels, middle, _mm512_loadu_ps(zeros + c)),
                                  at_middle);
      largest = _mm512_maskz_max_ps(0xffff, largest, _mm512_abs_ps(weight));
      _mm512_store_ps(weights + c, weight);
    }
    const float max = MaxLane(largest);
    const bool is_usable = max > 0 && max < 1e30f && 127.0f / max < 1e30f;
    const __m512 to_int8 = _mm512_set1_ps(is_usable ? 127.0f / max : 0.0f);
    __m512 rounded_sum = _mm512_setzero_ps();
    for (int c = 0; c < dim; c += 16) {
      const __m512i rounded =
          _mm512_maskz_cvtps_epi32(0xffff, _mm512_mul_ps(_mm512_load_ps(weights + c), to_int8));
      rounded_sum = _mm512_add_ps(rounded_sum, _mm512_maskz_cvtepi32_ps(0xffff, rounded));
      _mm_store_si128(reinterpret_cast<__m128i*>(weights8 + c),
                      _mm512_maskz_cvtepi32_epi8(0xffff, rounded));
    }
    const float step = is_usable ? max / 127.0f : 0.0f;
    prepared->step[h] = step;
    prepared->base[h] = SumLanes(at_middle) - step * 128.0f * SumLanes(rounded_sum) -
                        (head.offsets == nullptr ? 0.0f : head.offsets[h]);
  }
}

void ByteDotLogits(const ProjectedScoresParams& p, const PreparedQueries& prepared,
                   const std::byte* record, const std::byte* next, int first, int last,
                   bool want_max, float* out) {
  if (want_max) {
    LogitsOf<true>(p, prepared, record, next, first, last, out);
  } else {
    LogitsOf<false>(p, prepared, record, next, first, last, out);
  }
}

}  // namespace tokenbutler

#else  // no such instruction

namespace tokenbutler {

bool HasByteDot() { return false; }
void PrepareByteDot(const ProjectedScoresParams&, const ProjectedScoresParams::Head&,
                    const std::byte*, PreparedQueries*) {}
void ByteDotLogits(const ProjectedScoresParams&, const PreparedQueries&, const std::byte*,
                   const std::byte*, int, int, bool, float*) {}

}  // namespace tokenbutler

#endif
