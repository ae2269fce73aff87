// vpermb for scans of one-bit keys: the codes of four channels are the number of an entry of a
// table of their sums, so that one instruction looks up what vpdpbusd would need four for. Counting
// the bits of planes (vpopcntdq) takes more instructions than vpdpbusd: and, popcnt and shifted add
// for each bit of the queries.
#include <array>
#include <atomic>

#include "base/prefetch.h"
#include "engine/kernels/cpu/sketch_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TOKENBUTLER_VBMI gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,fma")

namespace tokenbutler {
namespace {

// Zero-masking forms of some instructions: g++ 12 warns about the undefined pass-through operand of
// the plain ones.
constexpr int kTokens = 16;         // of a tile
constexpr int kLineBytes = 64;      // 32 channels of these
constexpr int kTableChannels = 16;  // half a line: the upper or the lower half of its bytes

// Half a line's channels c are fields n of byte b, c = 4 n + b. For each b a table has 16 entries,
// one for each combination of the four fields:
//   sums[16 b + m] = sum of codes[4 n + b] over the n that are bits of m, less the least such sum
// So entries are 0 ... 255: see SketchRounding::kTables.
struct SumTables {
  alignas(64) uint8_t sums[kSketchHeads][kSketchMaxDim / kTableChannels][64];
};

// Where EntriesOf() gets entries from: for table i of four and entry m of byte b, byte
// 16 i + 4 (m & 3) + b, and with m >> 2.
struct EntryOrder {
  alignas(64) uint8_t low[4][64], high[4][64];
};

constexpr EntryOrder MakeEntryOrder() {
  EntryOrder order = {};
  for (int i = 0; i < 4; ++i) {
    for (int at = 0; at < 64; ++at) {
      const int b = at / 16, m = at % 16;
      order.low[i][at] = static_cast<uint8_t>(16 * i + 4 * (m & 3) + b);
      order.high[i][at] = static_cast<uint8_t>(16 * i + 4 * (m >> 2) + b);
    }
  }
  return order;
}
constexpr EntryOrder kEntryOrder = MakeEntryOrder();

// In each 128 bits, of words x and y: 0, x, y, x + y.
template <int kX, int kY>
[[TOKENBUTLER_VBMI, gnu::always_inline]] inline __m512i PairSums(__m512i words) {
  constexpr auto kFirst = static_cast<_MM_PERM_ENUM>(kX << 2 | kY << 4 | kY << 6);
  constexpr auto kSecond = static_cast<_MM_PERM_ENUM>(kX << 6);
  return _mm512_add_epi8(_mm512_maskz_shuffle_epi32(0xeeee, words, kFirst),
                         _mm512_maskz_shuffle_epi32(0x8888, words, kSecond));
}

// Four tables, of 64 channels. Bytes wrap around; the entries are in range.
[[TOKENBUTLER_VBMI, gnu::always_inline]] inline void MakeFourTables(const int8_t* codes,
                                                                    uint8_t (*tables)[64]) {
  const __m512i x = _mm512_load_si512(codes);
  // The least sums, in every word.
  __m512i least = _mm512_maskz_min_epi8(~0ull, x, _mm512_setzero_si512());
  least = _mm512_add_epi8(least, _mm512_maskz_shuffle_epi32(0xffff, least, _MM_PERM_BADC));
  least = _mm512_add_epi8(least, _mm512_maskz_shuffle_epi32(0xffff, least, _MM_PERM_CDAB));
  const __m512i low = _mm512_sub_epi8(PairSums<0, 1>(x), least), high = PairSums<2, 3>(x);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i from_low = _mm512_load_si512(kEntryOrder.low[i]);
    const __m512i from_high = _mm512_load_si512(kEntryOrder.high[i]);
    _mm512_store_si512(tables[i],
                       _mm512_add_epi8(_mm512_maskz_permutexvar_epi8(~0ull, from_low, low),
                                       _mm512_maskz_permutexvar_epi8(~0ull, from_high, high)));
  }
}

template <int kHeads>
[[TOKENBUTLER_VBMI, gnu::always_inline]] inline void MakeTables(const SketchTiles& p, int block,
                                                                SumTables* tables) {
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < p.layout->padded_dim(); c += 4 * kTableChannels) {
      MakeFourTables(p.queries->codes[block][h] + c, tables->sums[h] + c / kTableChannels);
    }
  }
}

// One load into a register for all uses: compilers would fold one into each, and loads are what
// most of the time goes into.
[[TOKENBUTLER_VBMI, gnu::always_inline]] inline __m512i LoadOnce(const void* from) {
  return *static_cast<const volatile __m512i*>(from);
}

// Scores some tiles of a block from `tile` on: tables are loaded once for all. kLines: how many
// each tile has, or 0 for any number. `offset`: of the first tile's codes in a record.
template <int kHeads, int kLines, int kTiles>
[[TOKENBUTLER_VBMI, gnu::always_inline]] inline void ScoreSome(const SketchTiles& p, int block,
                                                               const SumTables& tables, int tile,
                                                               size_t offset) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i table_of_byte = _mm512_set1_epi32(0x30201000);
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i begin = _mm512_castps_si512(_mm512_set1_ps(kSketchSumBase));
  constexpr int kAndOr = 0xea;  // (a & b) | c
  const int num_lines = kLines == 0 ? p.layout->padded_dim() / (2 * kTableChannels) : kLines;
  const std::byte* codes_at = p.records[block] + offset;
  const std::byte* ahead = p.records[block + p.codes_ahead] + offset;
  __m512i sums[kHeads][kTiles];
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kTiles; ++t) sums[h][t] = begin;
  }
#pragma GCC unroll 2
  for (int i = 0; i < num_lines; ++i) {
    __m512i entries[2][kTiles];
    for (int t = 0; t < kTiles; ++t) {
      const int at = (t * num_lines + i) * kLineBytes;
      const __m512i line = LoadOnce(codes_at + at);
      PrefetchToL2(ahead + at);
      entries[0][t] = _mm512_ternarylogic_epi32(line, nibble, table_of_byte, kAndOr);
      entries[1][t] =
          _mm512_ternarylogic_epi32(_mm512_srli_epi16(line, 4), nibble, table_of_byte, kAndOr);
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i table = LoadOnce(tables.sums[h][i * 2 + half]);
        for (int t = 0; t < kTiles; ++t) {
          const __m512i found = _mm512_maskz_permutexvar_epi8(~0ull, entries[half][t], table);
          sums[h][t] = _mm512_dpbusd_epi32(sums[h][t], found, ones);
        }
      }
    }
  }
  __m512 best[kTiles];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
    const __m512 factor = _mm512_set1_ps(p.queries->factors[h]);
    const __m512 base = _mm512_set1_ps(p.queries->bases[h][block]);
    for (int t = 0; t < kTiles; ++t) {
      const __m512 score = _mm512_fmadd_ps(_mm512_castsi512_ps(sums[h][t]), factor, base);
      best[t] = h == 0 ? score : _mm512_maskz_max_ps(0xffff, best[t], score);
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    float* out = p.scores + (tile + t) * kTokens;
    if (p.accumulate) best[t] = _mm512_maskz_max_ps(0xffff, best[t], _mm512_load_ps(out));
    _mm512_store_ps(out, best[t]);
    p.passed[tile + t] = _mm512_cmp_ps_mask(best[t], _mm512_set1_ps(p.threshold), _CMP_NLT_UQ);
  }
}

template <int kHeads, int kLines>
[[TOKENBUTLER_VBMI]] void ScoreTilesOf(const SketchTiles& p) {
  const int num_tiles = p.layout->sub_blocks();
  const size_t codes_offset = p.layout->codes_offset(), tile_bytes = p.layout->sub_block_bytes();
  SumTables tables;
  for (int block = 0; block < p.num_blocks; ++block) {
    const std::byte* fetch = p.records[block + kSketchScalesAhead];
    for (size_t at = 0; at < codes_offset; at += kLineBytes) PrefetchToL2(fetch + at);
    const int tile = block * num_tiles;
    MakeTables<kHeads>(p, block, &tables);
    int t = 0;
    for (; t + 2 <= num_tiles; t += 2) {
      ScoreSome<kHeads, kLines, 2>(p, block, tables, tile + t, codes_offset + t * tile_bytes);
    }
    if (t < num_tiles) {
      ScoreSome<kHeads, kLines, 1>(p, block, tables, tile + t, codes_offset + t * tile_bytes);
    }
  }
}

template <int kLines>
void ScoreTilesOfLines(const SketchTiles& p) {
  using Score = void (*)(const SketchTiles&);
  static constexpr Score kScores[kSketchHeads] = {ScoreTilesOf<1, kLines>, ScoreTilesOf<2, kLines>,
                                                  ScoreTilesOf<3, kLines>, ScoreTilesOf<4, kLines>,
                                                  ScoreTilesOf<5, kLines>, ScoreTilesOf<6, kLines>,
                                                  ScoreTilesOf<7, kLines>, ScoreTilesOf<8, kLines>};
  kScores[p.num_heads - 1](p);
}

bool FindVbmi() { return HasVnni() && __builtin_cpu_supports("avx512vbmi") != 0; }

std::atomic<bool>& Vbmi() {
  static std::atomic<bool> vbmi{FindVbmi()};
  return vbmi;
}

}  // namespace

void ScoreTilesVbmi(const SketchTiles& p) {
  if (p.layout->padded_dim() == 64) return ScoreTilesOfLines<2>(p);
  ScoreTilesOfLines<0>(p);
}

bool HasVbmi() { return Vbmi().load(std::memory_order_relaxed); }

void AllowVbmi(bool allowed) { Vbmi().store(allowed && FindVbmi(), std::memory_order_relaxed); }

}  // namespace tokenbutler

#else  // no such instruction: HasVbmi() is false

namespace tokenbutler {

void ScoreTilesVbmi(const SketchTiles&) {}
bool HasVbmi() { return false; }
void AllowVbmi(bool) {}

}  // namespace tokenbutler

#endif
