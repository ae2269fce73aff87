// Per-target building block of the kernels that read cached keys: included once per Highway target,
// hence no #pragma once.

#if defined(TOKENBUTLER_KEY_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKENBUTLER_KEY_DOTS_INL_H_
#undef TOKENBUTLER_KEY_DOTS_INL_H_
#else
#define TOKENBUTLER_KEY_DOTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/kernels/cpu/dot_tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Tokens whose logits are taken together; their keys and values stay in the L1 cache.
HWY_MAYBE_UNUSED constexpr int kTileTokens = 64;
// Query heads whose logits a tile holds.
HWY_MAYBE_UNUSED constexpr int kTileHeads = 8;
// Query heads that share one pass over rows of T: with two vectors of sums each they fill the
// registers. Few for the rarer types, to keep the program small.
template <class T>
constexpr int kPassHeads = HWY_TARGET == HWY_AVX3&& std::is_same_v<T, BF16> ? kTileHeads : 4;

// [head][token]
using TileLogits = float[kTileHeads * kTileTokens];

// Calls fn(integral_constant number of heads, first head) for each pass that `num_heads` heads
// need.
template <int kMaxHeads, class Fn>
HWY_INLINE void ForEachHeadPass(int num_heads, const Fn& fn) {
  int head = 0;
  for (; head + kMaxHeads <= num_heads; head += kMaxHeads) {
    fn(std::integral_constant<int, kMaxHeads>(), head);
  }
  if constexpr (kMaxHeads > 4) {
    if (num_heads - head == 7) return fn(std::integral_constant<int, 7>(), head);
    if (num_heads - head == 6) return fn(std::integral_constant<int, 6>(), head);
    if (num_heads - head == 5) return fn(std::integral_constant<int, 5>(), head);
    if (num_heads - head == 4) return fn(std::integral_constant<int, 4>(), head);
  }
  if (num_heads - head == 3) return fn(std::integral_constant<int, 3>(), head);
  if (num_heads - head == 2) return fn(std::integral_constant<int, 2>(), head);
  if (num_heads - head == 1) return fn(std::integral_constant<int, 1>(), head);
}

template <class T>
HWY_INLINE void PrefetchRow(const T* row, size_t head_dim) {
  const auto* bytes = reinterpret_cast<const char*>(row);
  const size_t row_bytes = head_dim * sizeof(T);
  for (size_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(bytes + at);
}

#if HWY_TARGET != HWY_SCALAR

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

// The 16 bytes at `offset` of each of N / 4 rows, one after the other; rows are kStride apart.
template <int kStride, class D>
HWY_INLINE hn::Vec<D> LoadRowBlocks(D d, const uint8_t* const* rows, size_t offset) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(rows[0] + offset));
  } else {
    const hn::Half<D> half;
    constexpr int kHalfRows = hn::MaxLanes(hn::Half<D>()) / 4 * kStride;
    return hn::Combine(d, LoadRowBlocks<kStride>(half, rows + kHalfRows, offset),
                       LoadRowBlocks<kStride>(half, rows, offset));
  }
}

// words[w] = word w of the 16 bytes at `offset` of each of N rows.
HWY_INLINE void LoadColumns(const uint8_t* const* rows, size_t offset, WordVec (&words)[4]) {
  const WordTag d;
  const WordVec r0 = LoadRowBlocks<4>(d, rows, offset);
  const WordVec r1 = LoadRowBlocks<4>(d, rows + 1, offset);
  const WordVec r2 = LoadRowBlocks<4>(d, rows + 2, offset);
  const WordVec r3 = LoadRowBlocks<4>(d, rows + 3, offset);
  const WordVec even_lower = hn::InterleaveLower(d, r0, r2);
  const WordVec even_upper = hn::InterleaveUpper(d, r0, r2);
  const WordVec odd_lower = hn::InterleaveLower(d, r1, r3);
  const WordVec odd_upper = hn::InterleaveUpper(d, r1, r3);
  words[0] = hn::InterleaveLower(d, even_lower, odd_lower);
  words[1] = hn::InterleaveUpper(d, even_lower, odd_lower);
  words[2] = hn::InterleaveLower(d, even_upper, odd_upper);
  words[3] = hn::InterleaveUpper(d, even_upper, odd_upper);
}

// Element kIndex of each word, widened to float32 (exact).
template <int kIndex>
HWY_INLINE FloatVec WordElement(const float*, WordVec words) {
  return hn::BitCast(FloatTag(), words);
}
template <int kIndex>
HWY_INLINE FloatVec WordElement(const BF16*, WordVec words) {
  if constexpr (kIndex == 0) return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
  return hn::BitCast(FloatTag(), hn::And(words, hn::Set(WordTag(), 0xffff0000u)));
}
template <int kIndex>
HWY_INLINE FloatVec WordElement(const F16*, WordVec words) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<hwy::float16_t, FloatTag> narrow;
  const WordVec lower =
      kIndex == 0 ? hn::And(words, hn::Set(WordTag(), 0xffffu)) : hn::ShiftRight<16>(words);
  return hn::PromoteTo(FloatTag(), hn::BitCast(narrow, hn::TruncateTo(d16, lower)));
}

#endif

// logits[h * kTileTokens + t] = query h . key row t, for kVecs * lanes rows. Rows are transposed as
// they are loaded, which all heads share, so that a vector holds the same element of many keys and
// no dot needs the sum of a vector's lanes. Each dot adds its elements in order, whatever kHeads
// and kVecs are.
template <int kHeads, int kVecs, class T>
HWY_INLINE void DotKeys(const T* const* keys, size_t head_dim, const float* queries,
                        float* logits) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t dim = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kPerWord = 4 / sizeof(T);
  FloatVec acc[kHeads][kVecs];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVecs; ++v) acc[h][v] = hn::Zero(d);
  }
  const auto* rows = reinterpret_cast<const uint8_t* const*>(keys);
  for (; dim + 4 * kPerWord <= head_dim; dim += 4 * kPerWord) {
    WordVec words[kVecs][4];
    for (int v = 0; v < kVecs; ++v) LoadColumns(rows + v * lanes, dim * sizeof(T), words[v]);
    for (int w = 0; w < 4; ++w) {
      const auto add = [&](auto index) HWY_ATTR {
        FloatVec column[kVecs];
        for (int v = 0; v < kVecs; ++v) {
          column[v] = WordElement<index.value>(static_cast<const T*>(nullptr), words[v][w]);
        }
        for (int h = 0; h < kHeads; ++h) {
          const FloatVec q = hn::Set(d, queries[h * head_dim + dim + w * kPerWord + index.value]);
          for (int v = 0; v < kVecs; ++v) acc[h][v] = hn::MulAdd(q, column[v], acc[h][v]);
        }
      };
      add(std::integral_constant<int, 0>());
      if constexpr (kPerWord == 2) add(std::integral_constant<int, 1>());
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[h][v], d, logits + h * kTileTokens + v * lanes);
  }
#else
  for (int h = 0; h < kHeads; ++h) std::fill_n(logits + h * kTileTokens, kVecs * lanes, 0.0f);
#endif
  for (; dim < head_dim; ++dim) {
    for (size_t t = 0; t < kVecs * lanes; ++t) {
      const float key = LoadFloat(keys[t] + dim);
      for (int h = 0; h < kHeads; ++h) {
        logits[h * kTileTokens + t] += queries[h * head_dim + dim] * key;
      }
    }
  }
}

// The rows of a tile's tokens; the array has a whole number of vectors, the last ones repeating the
// last row.
template <class T>
struct TileRows {
  const T* keys[kTileTokens];
  int num_tokens = 0;

  // Repeats the last row until the number of rows is a multiple of the vector's lanes.
  HWY_INLINE void Pad() {
    const int lanes = static_cast<int>(hn::Lanes(FloatTag()));
    for (int t = num_tokens; t % lanes != 0; ++t) keys[t] = keys[num_tokens - 1];
  }
};

// logits[h * kTileTokens + t] = queries[h] . key t of `tile`, for num_heads <= kTileHeads heads;
// behind the last token, up to a whole vector, the last one's. Fetches the keys of `next`
// meanwhile, if not null.
template <class T>
HWY_INLINE void TileDots(const TileRows<T>& tile, const TileRows<T>* next, size_t head_dim,
                         const float* queries, int num_heads, TileLogits& logits) {
  constexpr int kVecs = 2;
  const int lanes = static_cast<int>(hn::Lanes(FloatTag()));
  int fetched = 0;
  int t = 0;
  while (t < tile.num_tokens) {
    const bool pair = t + lanes < tile.num_tokens;
    const int step = pair ? kVecs * lanes : lanes;
    if (next != nullptr) {
      const bool last = t + step >= tile.num_tokens;
      const int until = last ? next->num_tokens : std::min(t + step, next->num_tokens);
      for (; fetched < until; ++fetched) PrefetchRow(next->keys[fetched], head_dim);
    }
    ForEachHeadPass<kPassHeads<T>>(num_heads, [&](auto heads, int h) HWY_ATTR {
      float* out = logits + h * kTileTokens + t;
      if (pair) {
        DotKeys<heads.value, kVecs>(tile.keys + t, head_dim, queries + h * head_dim, out);
      } else {
        DotKeys<heads.value, 1>(tile.keys + t, head_dim, queries + h * head_dim, out);
      }
    });
    t += step;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // TOKENBUTLER_KEY_DOTS_INL_H_
