// vpmaddubsw for scans of low-bit keys. The functions carry their instruction set as an attribute
// (see linear_bf16.cc).
#include "engine/kernels/cpu/sketch_tiles_generic.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TOKENBUTLER_AVX2 gnu::target("avx2,fma")

namespace tokenbutler {
namespace {

// Steps (4 channels each) whose 16-bit sums cannot overflow: 8 * 2 * 15 * 127 < 2^15.
constexpr int kSafeSteps = 8;
constexpr int kMaxSteps = kSketchMaxDim / 4;

// A tile's codes, one per byte: [step][32 * half] for steps of 4 channels.
[[TOKENBUTLER_AVX2, gnu::always_inline]] inline void Unpack(const SketchTiles& p,
                                                            const std::byte* tile,
                                                            __m256i codes[kMaxSteps][2]) {
  const int bits = p.layout->bits, fields = 8 / bits;
  const int num_lines = p.layout->padded_dim() / (4 * fields);
  const __m256i mask = _mm256_set1_epi8(static_cast<char>((1 << bits) - 1));
  const __m128i shift = _mm_cvtsi32_si128(bits);
  for (int i = 0; i < num_lines; ++i) {
    for (int half = 0; half < 2; ++half) {
      __m256i line = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + i * 64 + half * 32));
      for (int n = 0; n < fields; ++n) {
        codes[i * fields + n][half] = _mm256_and_si256(line, mask);
        line = _mm256_srl_epi16(line, shift);
      }
    }
  }
}

[[TOKENBUTLER_AVX2, gnu::always_inline]] inline void ScoreTile(const SketchTiles& p, int block,
                                                               const std::byte* tile,
                                                               float* scores) {
  __m256i codes[kMaxSteps][2];
  Unpack(p, tile, codes);
  const int num_steps = p.layout->padded_dim() / 4;
  const __m256i ones = _mm256_set1_epi16(1);
  for (int h = 0; h < p.num_heads; ++h) {
    const int8_t* query = p.queries->codes[block][h];
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int step = 0; step < num_steps; step += kSafeSteps) {
      __m256i pairs[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int i = step; i < num_steps && i < step + kSafeSteps; ++i) {
        int word;
        std::memcpy(&word, query + i * 4, 4);
        const __m256i weights = _mm256_set1_epi32(word);
        pairs[0] = _mm256_add_epi16(pairs[0], _mm256_maddubs_epi16(codes[i][0], weights));
        pairs[1] = _mm256_add_epi16(pairs[1], _mm256_maddubs_epi16(codes[i][1], weights));
      }
      sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(pairs[0], ones));
      sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(pairs[1], ones));
    }
    const __m256 factor = _mm256_set1_ps(p.queries->factors[h]);
    const __m256 base = _mm256_set1_ps(p.queries->bases[h][block]);
    for (int half = 0; half < 2; ++half) {
      float* out = scores + half * 8;
      __m256 score = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[half]), factor, base);
      if (h > 0 || p.accumulate) score = _mm256_max_ps(score, _mm256_load_ps(out));
      _mm256_store_ps(out, score);
    }
  }
}

}  // namespace

[[TOKENBUTLER_AVX2]] void ScoreTilesAvx2(const SketchTiles& p) {
  const int sub_blocks = p.layout->sub_blocks();
  const size_t codes_offset = p.layout->codes_offset(), tile_bytes = p.layout->sub_block_bytes();
  const __m256 threshold = _mm256_set1_ps(p.threshold);
  for (int tile = 0; tile < p.num_blocks * sub_blocks; ++tile) {
    const int block = tile / sub_blocks;
    const size_t offset = codes_offset + tile % sub_blocks * tile_bytes;
    const std::byte* ahead = p.records[block + kSketchBlocksAhead] + offset;
    for (size_t at = 0; at < tile_bytes; at += 64) __builtin_prefetch(ahead + at);
    float* scores = p.scores + tile * kSketchLanes;
    ScoreTile(p, block, p.records[block] + offset, scores);
    const int low =
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_load_ps(scores), threshold, _CMP_NLT_UQ));
    const int high =
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_load_ps(scores + 8), threshold, _CMP_NLT_UQ));
    p.passed[tile] = static_cast<uint16_t>(low | high << 8);
  }
}

}  // namespace tokenbutler

#else  // no such instruction: KernelTarget() is always kPortable

namespace tokenbutler {

void ScoreTilesAvx2(const SketchTiles& p) { ScoreTilesPortable(p); }

}  // namespace tokenbutler

#endif
