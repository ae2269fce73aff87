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
constexpr int kLanes = 32;  // bf16 elements of one register

// Many rows of x and the weights that they are multiplied with do not fit the first cache together.
// So a group of rows meets kBlockOuts weight rows, of long ones kBlockIns elements at a time, whose
// sums wait in memory. The next group finds these weights in the second cache; as many rows as
// kPassRows share what is read from memory.
constexpr int kGroupRows = 8;
constexpr int kBlockOuts = 16;
constexpr int kBlockIns = 512;
constexpr int kPassRows = 32;
// Rows so short that a group of them fits are not cut.
constexpr int kMaxUnblockedIns = 1024;
// Uncut weight rows are fetched so many tiles before their use, cut ones a block's time.
constexpr size_t kTilesAhead = 2;

// A range of a product's elements, and where the sums of a tile are before and after it.
struct Block {
  int begin, end;
  // [row of the tile][kBlockOuts] vectors, of which the tile's are the first of each row. Read
  // unless the block is the first, written unless it is the last.
  float* sums;
  bool is_first, is_last;
  size_t prefetch;  // bytes ahead of the weights; 0: none
};

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
// lanes' sum; the same for every kRows and however the elements are blocked.
template <int kRows>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"), gnu::always_inline]] inline void
Tile(const LinearParams& p, const Block& block, int row, int out, int out_end) {
  constexpr int kVector = kLanes / 2;  // floats
  const int n = p.in_features;
  const BF16* x[kRows];
  const BF16* w[kTileOuts];
  __m512 acc[kRows][kTileOuts];
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const BF16*>(p.x) + static_cast<size_t>(row + r) * n;
    for (int o = 0; o < kTileOuts; ++o) {
      acc[r][o] = block.is_first ? _mm512_setzero_ps()
                                 : _mm512_load_ps(block.sums + (r * kBlockOuts + o) * kVector);
    }
  }
  for (int o = 0; o < kTileOuts; ++o) {
    const int clamped = out + o < out_end ? out + o : out_end - 1;
    w[o] = static_cast<const BF16*>(p.weight) + static_cast<size_t>(clamped) * n;
  }
  int i = block.begin;
  for (; i + kLanes <= block.end; i += kLanes) {
    __m512bh weights[kTileOuts];
    for (int o = 0; o < kTileOuts; ++o) {
      weights[o] = (__m512bh)_mm512_loadu_si512(w[o] + i);
      PrefetchToL2(reinterpret_cast<const char*>(w[o] + i) + block.prefetch);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512bh values = (__m512bh)_mm512_loadu_si512(x[r] + i);
      for (int o = 0; o < kTileOuts; ++o) {
        acc[r][o] = _mm512_dpbf16_ps(acc[r][o], values, weights[o]);
      }
    }
  }
  if (!block.is_last) {
    for (int r = 0; r < kRows; ++r) {
      for (int o = 0; o < kTileOuts; ++o) {
        _mm512_store_ps(block.sums + (r * kBlockOuts + o) * kVector, acc[r][o]);
      }
    }
    return;
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

// x rows [row, last) with the weight rows of a tile.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"), gnu::always_inline]] inline void
Tiles(const LinearParams& p, Block block, int row, int last, int out, int out_end) {
  constexpr size_t kTileSums = size_t{kTileRows} * kBlockOuts * kLanes / 2;
  for (; row + kTileRows <= last; row += kTileRows) {
    Tile<kTileRows>(p, block, row, out, out_end);
    block.sums += kTileSums;
    block.prefetch = 0;  // the tile's weights have been here
  }
  if (last - row == 3) Tile<3>(p, block, row, out, out_end);
  if (last - row == 2) Tile<2>(p, block, row, out, out_end);
  if (last - row == 1) Tile<1>(p, block, row, out, out_end);
}

// x rows [row, last), at most kGroupRows, with weight rows [out, out_end), at most kBlockOuts.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] void BlockedGroup(
    const LinearParams& p, int row, int last, int out, int out_end, bool fetches) {
  alignas(64) float sums[kGroupRows * kBlockOuts * kLanes / 2];
  const int n = p.in_features;
  const int step = n <= kMaxUnblockedIns ? n : kBlockIns;
  const size_t row_bytes = static_cast<size_t>(n) * sizeof(BF16);
  int begin = 0;
  do {
    Block block{.begin = begin,
                .end = begin + step < n ? begin + step : n,
                .sums = nullptr,
                .is_first = begin == 0,
                .is_last = begin + step >= n,
                .prefetch = 0};
    if (fetches && step == n) {
      block.prefetch = kTilesAhead * kTileOuts * row_bytes;
    } else if (fetches) {
      // The same rows' next elements, at the end the next rows' first ones.
      block.prefetch =
          block.is_last ? kBlockOuts * row_bytes - begin * sizeof(BF16) : step * sizeof(BF16);
    }
    for (int o = out; o < out_end; o += kTileOuts) {
      block.sums = sums + static_cast<size_t>(o - out) * kLanes / 2;
      Tiles(p, block, row, last, o, out_end);
    }
    begin += step;
  } while (begin < n);
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]] void Range(const LinearParams& p,
                                                                            int out_begin,
                                                                            int out_end) {
  for (int first = 0; first < p.num_rows; first += kPassRows) {
    const int last = first + kPassRows < p.num_rows ? first + kPassRows : p.num_rows;
    for (int out = out_begin; out < out_end; out += kBlockOuts) {
      const int end = out + kBlockOuts < out_end ? out + kBlockOuts : out_end;
      for (int row = first; row < last; row += kGroupRows) {
        const int group_end = row + kGroupRows < last ? row + kGroupRows : last;
        BlockedGroup(p, row, group_end, out, end, row == first);
      }
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
