// vpmaddubsw for scans of low-bit keys. The functions carry their instruction set as an attribute
// (see linear_bf16.cc).
#include <algorithm>
#include <cstring>

#include "base/prefetch.h"
#include "engine/kernels/cpu/sketch_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TOKENBUTLER_AVX2 gnu::target("avx2,fma")

namespace tokenbutler {
namespace {

constexpr int kTokens = 16;  // of a tile: two registers of 8
constexpr int kLineBytes = 64;
// Heads that go through a tile together: their sums stay in registers.
constexpr int kHeadsTogether = 4;

// Steps (4 channels each) whose 16-bit sums cannot overflow: a step adds at most
// 2 * levels * 127 to one.
template <int kBits>
constexpr int kSafeSteps = 32767 / (2 * ((1 << kBits) - 1) * 127);

// sums[h][half] += the dots of `num_steps` steps from `first` on, of 8 tokens each.
template <int kBits, int kHeads>
[[TOKENBUTLER_AVX2, gnu::always_inline]] inline void AddSteps(const std::byte* tile, int first,
                                                              int num_steps, const int8_t* queries,
                                                              __m256i sums[kHeads][2]) {
  constexpr int kFields = 8 / kBits;
  const __m256i mask = _mm256_set1_epi8(static_cast<char>((1 << kBits) - 1));
  __m256i pairs[kHeads][2];
  for (int h = 0; h < kHeads; ++h) pairs[h][0] = pairs[h][1] = _mm256_setzero_si256();
  // `first` and `num_steps` are whole lines.
  for (int line = first / kFields; line < (first + num_steps) / kFields; ++line) {
    const auto* at = reinterpret_cast<const __m256i*>(tile + line * kLineBytes);
    const __m256i low = _mm256_load_si256(at), high = _mm256_load_si256(at + 1);
#pragma GCC unroll 8
    for (int n = 0; n < kFields; ++n) {
      const __m256i codes[2] = {_mm256_and_si256(_mm256_srli_epi16(low, n * kBits), mask),
                                _mm256_and_si256(_mm256_srli_epi16(high, n * kBits), mask)};
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        int word;
        std::memcpy(&word, queries + h * kSketchMaxDim + (line * kFields + n) * 4, 4);
        const __m256i query = _mm256_set1_epi32(word);
        for (int half = 0; half < 2; ++half) {
          pairs[h][half] =
              _mm256_add_epi16(pairs[h][half], _mm256_maddubs_epi16(codes[half], query));
        }
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  for (int h = 0; h < kHeads; ++h) {
    for (int half = 0; half < 2; ++half) {
      sums[h][half] = _mm256_add_epi32(sums[h][half], _mm256_madd_epi16(pairs[h][half], ones));
    }
  }
}

// Scores of a tile by the heads [first_head, first_head + kHeads).
template <int kBits, int kHeads>
[[TOKENBUTLER_AVX2, gnu::always_inline]] inline void ScoreTile(const SketchTiles& p, int block,
                                                               const std::byte* tile,
                                                               int first_head, float* scores) {
  constexpr int kFields = 8 / kBits;
  constexpr int kStepsTogether = kSafeSteps<kBits> / kFields * kFields;
  const int8_t* queries = p.queries->codes[block][first_head];
  const int num_steps = p.layout->padded_dim() / 4;
  __m256i sums[kHeads][2];
  for (int h = 0; h < kHeads; ++h) sums[h][0] = sums[h][1] = _mm256_setzero_si256();
  for (int step = 0; step < num_steps; step += kStepsTogether) {
    AddSteps<kBits, kHeads>(tile, step, std::min(kStepsTogether, num_steps - step), queries, sums);
  }
  for (int half = 0; half < 2; ++half) {
    float* out = scores + half * 8;
    __m256 best = _mm256_setzero_ps();
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h;
      const __m256 score = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[h][half]),
                                           _mm256_set1_ps(p.queries->factors[head]),
                                           _mm256_set1_ps(p.queries->bases[head][block]));
      best = h == 0 ? score : _mm256_max_ps(best, score);
    }
    if (first_head > 0 || p.accumulate) best = _mm256_max_ps(best, _mm256_load_ps(out));
    _mm256_store_ps(out, best);
  }
}

template <int kBits>
[[TOKENBUTLER_AVX2, gnu::always_inline]] inline void ScoreHeads(const SketchTiles& p, int block,
                                                                const std::byte* tile,
                                                                float* scores) {
  int head = 0;
  for (; head + kHeadsTogether <= p.num_heads; head += kHeadsTogether) {
    ScoreTile<kBits, kHeadsTogether>(p, block, tile, head, scores);
  }
  switch (p.num_heads - head) {
    case 3:
      return ScoreTile<kBits, 3>(p, block, tile, head, scores);
    case 2:
      return ScoreTile<kBits, 2>(p, block, tile, head, scores);
    case 1:
      return ScoreTile<kBits, 1>(p, block, tile, head, scores);
    default:
      return;
  }
}

template <int kBits>
[[TOKENBUTLER_AVX2]] void ScoreTilesOfBits(const SketchTiles& p) {
  const int sub_blocks = p.layout->sub_blocks();
  const size_t codes_offset = p.layout->codes_offset(), tile_bytes = p.layout->sub_block_bytes();
  const __m256 threshold = _mm256_set1_ps(p.threshold);
  for (int tile = 0; tile < p.num_blocks * sub_blocks; ++tile) {
    const int block = tile / sub_blocks;
    const size_t offset = codes_offset + tile % sub_blocks * tile_bytes;
    const std::byte* ahead = p.records[block + p.codes_ahead] + offset;
    for (size_t at = 0; at < tile_bytes; at += kLineBytes) PrefetchToL1(ahead + at);
    float* scores = p.scores + tile * kTokens;
    ScoreHeads<kBits>(p, block, p.records[block] + offset, scores);
    const int low =
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_load_ps(scores), threshold, _CMP_NLT_UQ));
    const int high =
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_load_ps(scores + 8), threshold, _CMP_NLT_UQ));
    p.passed[tile] = static_cast<uint16_t>(low | high << 8);
  }
}

}  // namespace

void ScoreTilesAvx2(const SketchTiles& p) {
  if (p.layout->bits == 1) return ScoreTilesOfBits<1>(p);
  if (p.layout->bits == 2) return ScoreTilesOfBits<2>(p);
  ScoreTilesOfBits<4>(p);
}

}  // namespace tokenbutler

#else  // no such instruction: KernelTarget() is always kPortable

namespace tokenbutler {

void ScoreTilesAvx2(const SketchTiles& p) { ScoreTilesPortable(p); }

}  // namespace tokenbutler

#endif
