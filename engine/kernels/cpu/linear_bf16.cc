// vdpbf16ps for Linear: Highway 1.0.3 does not know it. The functions carry their instruction set
// as an attribute instead of the file as a compiler flag: with the flag, inline functions of
// standard headers compiled here could be linked into the rest of the program.
#include "engine/kernels/cpu/linear_bf16.h"

#include <cstddef>
#include <cstdint>

#include "base/prefetch.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace tokenbutler {
namespace {

constexpr int kTileRows = 4;
constexpr int kTileOuts = 4;
constexpr int kLanes = 32;     // bf16 elements of one register
constexpr int kPassRows = 16;  // x rows that share one pass over the weights (see linear.cc)
constexpr size_t kMaxPrefetchBytes = 4096;

// The sum of the upper and the lower half. Zero-masking extracts: g++ 12 warns about the undefined
// pass-through operand of the plain ones.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"), gnu::always_inline]] inline __m256
FoldHalves(__m512 v) {
  return _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, v, 0),
                       _mm512_maskz_extractf32x8_ps(0xff, v, 1));
}

// The sum of the lanes of each of four registers.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"), gnu::always_inline]] inline __m128
LaneSums(__m512 v0, __m512 v1, __m512 v2, __m512 v3) {
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(FoldHalves(v0), FoldHalves(v1)),
                                     _mm256_hadd_ps(FoldHalves(v2), FoldHalves(v3)));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// One pair of rows is always: whole registers in order, one masked register for the tail, then the
// lanes' sum; the same for every kRows.
template <int kRows>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"), gnu::always_inline]] inline void
Tile(const LinearParams& p, int row, int out, int out_end) {
  const int n = p.in_features;
  const size_t row_bytes = static_cast<size_t>(n) * sizeof(BF16);
  const size_t prefetch =
      kTileOuts * row_bytes < kMaxPrefetchBytes ? kTileOuts * row_bytes : kMaxPrefetchBytes;
  const BF16* x[kRows];
  const BF16* w[kTileOuts];
  __m512 acc[kRows][kTileOuts];
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const BF16*>(p.x) + static_cast<size_t>(row + r) * n;
    for (int o = 0; o < kTileOuts; ++o) acc[r][o] = _mm512_setzero_ps();
  }
  for (int o = 0; o < kTileOuts; ++o) {
    const int clamped = out + o < out_end ? out + o : out_end - 1;
    w[o] = static_cast<const BF16*>(p.weight) + static_cast<size_t>(clamped) * n;
  }
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    __m512bh weights[kTileOuts];
    for (int o = 0; o < kTileOuts; ++o) {
      weights[o] = (__m512bh)_mm512_loadu_si512(w[o] + i);
      PrefetchToL2(reinterpret_cast<const char*>(w[o] + i) + prefetch);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512bh values = (__m512bh)_mm512_loadu_si512(x[r] + i);
      for (int o = 0; o < kTileOuts; ++o) {
        acc[r][o] = _mm512_dpbf16_ps(acc[r][o], values, weights[o]);
      }
    }
  }
  if (i < n) {
    const __mmask32 mask = static_cast<__mmask32>((1u << (n - i)) - 1);
    for (int r = 0; r < kRows; ++r) {
      const __m512bh values = (__m512bh)_mm512_maskz_loadu_epi16(mask, x[r] + i);
      for (int o = 0; o < kTileOuts; ++o) {
        const __m512bh weights = (__m512bh)_mm512_maskz_loadu_epi16(mask, w[o] + i);
        acc[r][o] = _mm512_dpbf16_ps(acc[r][o], values, weights);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    alignas(16) float sums[kTileOuts];
    _mm_store_ps(sums, LaneSums(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
    float* y = p.y + static_cast<size_t>(row + r) * p.out_features;
    for (int o = 0; o < kTileOuts && out + o < out_end; ++o) {
      y[out + o] = sums[o] + (p.bias == nullptr ? 0.0f : p.bias[out + o]);
    }
  }
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] void Range(const LinearParams& p,
                                                                            int out_begin,
                                                                            int out_end) {
  for (int first = 0; first < p.num_rows; first += kPassRows) {
    const int last = first + kPassRows < p.num_rows ? first + kPassRows : p.num_rows;
    for (int out = out_begin; out < out_end; out += kTileOuts) {
      int row = first;
      for (; row + kTileRows <= last; row += kTileRows) Tile<kTileRows>(p, row, out, out_end);
      if (last - row == 3) Tile<3>(p, row, out, out_end);
      if (last - row == 2) Tile<2>(p, row, out, out_end);
      if (last - row == 1) Tile<1>(p, row, out, out_end);
    }
  }
}

}  // namespace

void LinearRangeBf16Dot(const LinearParams& p, int out_begin, int out_end) {
  Range(p, out_begin, out_end);
}

}  // namespace tokenbutler

#else  // no such instruction: KernelTarget() is never kAvx512Bf16

namespace tokenbutler {

void LinearRangeBf16Dot(const LinearParams& p, int out_begin, int out_end) {
  (void)p, (void)out_begin, (void)out_end;
}

}  // namespace tokenbutler

#endif
