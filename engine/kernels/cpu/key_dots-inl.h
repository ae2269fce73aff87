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
#include <cstring>
#include <type_traits>

#include "base/prefetch.h"
#include "engine/kernels/cpu/dot_tile-inl.h"
#include "hwy/highway.h"
#include "offload/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Tokens whose logits are taken together; their keys and values stay in the L1 cache.
HWY_MAYBE_UNUSED constexpr int kTileTokens = 64;
// Query heads whose logits a tile holds.
HWY_MAYBE_UNUSED constexpr int kTileHeads = 8;
// [head][token]
using TileLogits = float[kTileHeads * kTileTokens];

template <class T>
HWY_INLINE void PrefetchRow(const T* row, int head_dim) {
  const auto* bytes = reinterpret_cast<const char*>(row);
  const size_t row_bytes = head_dim * sizeof(T);
  for (size_t at = 0; at < row_bytes; at += 64) PrefetchToL2(bytes + at);
}

// Lanes of a float vector.
HWY_MAYBE_UNUSED constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
// Query heads whose dots are taken together: one for each 128-bit block of a vector.
HWY_MAYBE_UNUSED constexpr int kDotHeads = kLanes < 4 ? 1 : kLanes / 4;
// Most floats that packed queries may take: they live on the stack.
HWY_MAYBE_UNUSED constexpr int kMaxPackedFloats = 8192;

// Query heads whose packed queries fit: all of them in any known model. REQUIRES: head_dim <=
// 2048.
HWY_INLINE int MaxPackedHeads(int head_dim) { return kMaxPackedFloats / head_dim / 4 * 4; }

// Elements of a row of T that one step of DotKeys takes, in vectors of 4 per head.
template <class T>
constexpr int kStepDims = kLanes < 4                ? 1
                          : std::is_same_v<T, I8>   ? 16
                          : std::is_same_v<T, BF16> ? 8
                                                    : 4;

// The query of block b of `packed`, or zeros when null.
template <class T>
HWY_INLINE void PackQuery(const float* query, int head_dim, float* packed, int b) {
  int dim = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d;
  for (; dim + kStepDims<T> <= head_dim; dim += kStepDims<T>) {
    float* step = packed + dim * kDotHeads + 4 * b;
    if constexpr (kStepDims<T> == 16) {
      for (int i = 0; i < 16; ++i) {
        step[i % 4 * kLanes + i / 4] = query == nullptr ? 0.0f : query[dim + i];
      }
      continue;
    }
    auto v0 = query == nullptr ? hn::Zero(d) : hn::LoadU(d, query + dim);
    if constexpr (kStepDims<T> == 8) {
      const auto v1 = query == nullptr ? hn::Zero(d) : hn::LoadU(d, query + dim + 4);
      hn::StoreU(hn::ConcatOdd(d, v1, v0), d, step + kLanes);
      v0 = hn::ConcatEven(d, v1, v0);
    }
    hn::StoreU(v0, d, step);
  }
#endif
  for (; dim < head_dim; ++dim) packed[dim * kDotHeads + b] = query == nullptr ? 0.0f : query[dim];
}

// Brings the queries of num_heads heads [num_heads, head_dim] into the order that DotKeys wants:
//   [heads / kDotHeads][head_dim / kStepDims][kStepDims / 4][kDotHeads][4]
// where the two vectors of a step of bf16 are its even and its odd elements, and vector j of the
// four of a step of int8 has elements j, 4 + j, 8 + j and 12 + j; behind the whole steps come the
// other elements, [kDotHeads] each. Missing heads are zeros. `packed` has space for num_heads,
// rounded up to kDotHeads, times head_dim floats.
template <class T>
HWY_INLINE void PackQueries(const float* queries, int num_heads, int head_dim, float* packed) {
  for (int first = 0; first < num_heads; first += kDotHeads, packed += kDotHeads * head_dim) {
    for (int b = 0; b < kDotHeads; ++b) {
      const bool missing = first + b >= num_heads;
      PackQuery<T>(missing ? nullptr : queries + (first + b) * head_dim, head_dim, packed, b);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR

// v[i]: vector i of the kStepDims elements from p, widened to float32 (exact), in every block.
HWY_INLINE void LoadStep(const float* p, FloatVec (&v)[1]) { v[0] = hn::LoadDup128(FloatTag(), p); }
HWY_INLINE void LoadStep(const F16* p, FloatVec (&v)[1]) {
  if constexpr (kLanes == 4) {  // one block
    v[0] = LoadFloats(FloatTag(), p);
    return;
  }
  const hn::Rebind<hwy::float16_t, FloatTag> narrow;
  const hn::Repartition<uint64_t, decltype(narrow)> fours;
  uint64_t four;
  std::memcpy(&four, p, sizeof(four));
  v[0] = hn::PromoteTo(FloatTag(), hn::BitCast(narrow, hn::Set(fours, four)));
}
HWY_INLINE void LoadStep(const I8* p, FloatVec (&v)[4]) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> words;
  const auto codes = hn::LoadDup128(words, reinterpret_cast<const int32_t*>(p));
  v[0] = hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24>(codes)));
  v[1] = hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<16>(codes)));
  v[2] = hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<8>(codes)));
  v[3] = hn::ConvertTo(d, hn::ShiftRight<24>(codes));
}
HWY_INLINE void LoadStep(const BF16* p, FloatVec (&v)[2]) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> words;
  const auto pairs = hn::LoadDup128(words, reinterpret_cast<const uint32_t*>(p));
  v[0] = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
  v[1] = hn::BitCast(d, hn::And(pairs, hn::Set(words, 0xffff0000u)));
}

// Word t of each block: the sum of that block of v[t].
HWY_INLINE FloatVec SumInBlocks(const FloatVec* v) {
  const FloatTag d;
  const hn::Repartition<uint64_t, FloatTag> d64;
  const auto sum01 = hn::BitCast(
      d64, hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
  const auto sum23 = hn::BitCast(
      d64, hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, sum01, sum23)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, sum01, sum23)));
}

// Keys that DotKeys takes together.
HWY_MAYBE_UNUSED constexpr int kDotKeys = HWY_TARGET == HWY_AVX3 ? 8 : 4;
// Whether there are registers for the sums of two groups of kDotHeads heads and half of the keys:
// then a key is widened once for both.
HWY_MAYBE_UNUSED constexpr bool kPairGroups = HWY_TARGET == HWY_AVX3;

#else

HWY_MAYBE_UNUSED constexpr int kDotKeys = 1;
HWY_MAYBE_UNUSED constexpr bool kPairGroups = false;

#endif

// logits[h * kTileTokens + t] = query h . key t for kGroups times kDotHeads queries, of which
// `packed` holds the groups', and kKeys rows (a multiple of 4). Each block of a vector belongs to
// one head and sees the same elements of a row: they are loaded and widened once for all heads, and
// only four lanes are left to be added in the end. The sums of a query do not depend on kGroups or
// kKeys. kDim: head_dim if the compiler is to know it, or 0.
template <int kDim, int kGroups, int kKeys, class T>
HWY_INLINE void DotKeys(const T* const* keys, int any_dim, const float* packed, float* logits) {
  const int head_dim = kDim == 0 ? any_dim : kDim;
  const int group_floats = kDotHeads * head_dim;
  int dim = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  constexpr int kVecs = kStepDims<T> / 4;
  // Two sums where there are two vectors or more: an addition need not wait for the one before it.
  constexpr int kSums = kVecs < 2 ? 1 : 2;
  FloatVec acc[kGroups][kSums][kKeys];
  for (int g = 0; g < kGroups; ++g) {
    for (int v = 0; v < kSums; ++v) {
      for (int t = 0; t < kKeys; ++t) acc[g][v][t] = hn::Zero(d);
    }
  }
  const float* q = packed;
  HWY_UNROLL(16)
  for (; dim + kStepDims<T> <= head_dim; dim += kStepDims<T>, q += kVecs * kLanes) {
    FloatVec query[kGroups][kVecs];
    for (int g = 0; g < kGroups; ++g) {
      for (int v = 0; v < kVecs; ++v) {
        query[g][v] = hn::LoadU(d, q + g * group_floats + v * kLanes);
      }
    }
    for (int t = 0; t < kKeys; ++t) {
      FloatVec key[kVecs];
      LoadStep(keys[t] + dim, key);
      for (int g = 0; g < kGroups; ++g) {
        for (int v = 0; v < kVecs; ++v) {
          FloatVec& sum = acc[g][v % kSums][t];
          sum = hn::MulAdd(query[g][v], key[v], sum);
        }
      }
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    FloatVec* sums = acc[g][0];
    for (int t = 0; kSums == 2 && t < kKeys; ++t) sums[t] = hn::Add(sums[t], acc[g][kSums - 1][t]);
    float* group = logits + g * kDotHeads * kTileTokens;
    for (int t = 0; t < kKeys; t += 4) {
      HWY_ALIGN float fours[kDotHeads][4];
      hn::Store(SumInBlocks(sums + t), d, fours[0]);
      for (int h = 0; h < kDotHeads; ++h) std::copy_n(fours[h], 4, group + h * kTileTokens + t);
    }
  }
#else
  for (int g = 0; g < kGroups; ++g) std::fill_n(logits + g * kTileTokens, kKeys, 0.0f);
#endif
  for (; dim < head_dim; ++dim) {
    for (int t = 0; t < kKeys; ++t) {
      const float key = LoadFloat(keys[t] + dim);
      for (int h = 0; h < kGroups * kDotHeads; ++h) {
        const float* group = packed + h / kDotHeads * group_floats;
        logits[h * kTileTokens + t] += group[dim * kDotHeads + h % kDotHeads] * key;
      }
    }
  }
}

// Where the rows of one layer and KV head are in each block.
template <class T>
struct HeadRows {
  HWY_INLINE HeadRows(const KvLayout& kv, int layer, int kv_head)
      : block_size(static_cast<unsigned>(kv.block_size)),
        head_dim(static_cast<size_t>(kv.head_dim)),
        key_offset(kv.key_offset(layer, kv_head)),
        scale_offset(kHasScale<T> ? kv.scale_offset(layer, kv_head) : 0) {}

  unsigned block_size;
  size_t head_dim, key_offset, scale_offset;
};

// The rows of a tile's tokens.
template <class T>
struct TileRows {
  const T* keys[kTileTokens];
  // int8: the scales of each token's key and value.
  const float* scales[kHasScale<T> ? kTileTokens : 1];
  int num_tokens = 0;

  // Token i is the row `row` of `block`.
  HWY_INLINE void Set(int i, const HeadRows<T>& rows, const std::byte* block, size_t row) {
    keys[i] = reinterpret_cast<const T*>(block + rows.key_offset) + row * rows.head_dim;
    if constexpr (kHasScale<T>) {
      scales[i] = reinterpret_cast<const float*>(block + rows.scale_offset) +
                  row * KvLayout::kScalesPerToken;
    }
  }

  // The tokens from `at` on, before `end`, that lie in one block and between two multiples of
  // kTileTokens in it.
  HWY_INLINE void FillRun(const HeadRows<T>& rows, const std::byte* const* blocks, int at,
                          int end) {
    const int block_size = static_cast<int>(rows.block_size);
    const int row = at % block_size;
    const int in_tile = kTileTokens - row % kTileTokens;
    num_tokens = std::min({in_tile, block_size - row, end - at});
    const std::byte* block = blocks[at / block_size];
    for (int t = 0; t < num_tokens; ++t) Set(t, rows, block, static_cast<size_t>(row) + t);
    Pad();
  }

  // Repeats the last row so that DotKeys may read a whole number of its steps.
  HWY_INLINE void Pad() {
    for (int t = num_tokens; t % kDotKeys != 0; ++t) {
      keys[t] = keys[num_tokens - 1];
      if constexpr (kHasScale<T>) scales[t] = scales[num_tokens - 1];
    }
  }

  HWY_INLINE void PrefetchKey(int t, int head_dim) const {
    PrefetchRow(keys[t], head_dim);
    if constexpr (kHasScale<T>) PrefetchToL2(scales[t]);
  }
};

template <class T>
HWY_INLINE void PrefetchKeys(const TileRows<T>& tile, int head_dim) {
  for (int t = 0; t < tile.num_tokens; ++t) tile.PrefetchKey(t, head_dim);
}

// values[h * kTileTokens + t] *= scale of token t's key (value), for num_heads heads.
template <class T>
HWY_INLINE void MultiplyByScales(const TileRows<T>& tile, bool of_values, int num_heads,
                                 float* values) {
  const FloatTag d;
  HWY_ALIGN float scales[kTileTokens] = {};
  for (int t = 0; t < tile.num_tokens; ++t) scales[t] = tile.scales[t][of_values ? 1 : 0];
  for (int h = 0; h < num_heads; ++h) {
    float* row = values + h * kTileTokens;
    for (int t = 0; t < tile.num_tokens; t += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + t), hn::Load(d, scales + t)), d, row + t);
    }
  }
}

// logits[h * kTileTokens + t] = query h . key t of `tile` for num_heads <= kTileHeads heads, packed
// by PackQueries<T>; up to a multiple of kDotHeads and of kDotKeys, more is written. Fetches the
// keys of `next` meanwhile, if not null. A function of its own, like the other parts of a tile: the
// compiler keeps its vectors in registers.
template <int kDim, class T>
HWY_NOINLINE void TileDots(const TileRows<T>& tile, const TileRows<T>* next, int head_dim,
                           const float* packed, int num_heads, TileLogits& logits) {
  const int num_next = next == nullptr ? 0 : next->num_tokens;
  int fetched = 0;
  for (int t = 0; t < tile.num_tokens; t += kDotKeys) {
    const bool last = t + kDotKeys >= tile.num_tokens;
    const int until = last ? num_next : std::min(t + kDotKeys, num_next);
    for (; fetched < until; ++fetched) next->PrefetchKey(fetched, head_dim);
    int h = 0;
    if constexpr (kPairGroups) {
      for (; h + kDotHeads < num_heads; h += 2 * kDotHeads) {
        for (int half = t; half < t + kDotKeys; half += kDotKeys / 2) {
          DotKeys<kDim, 2, kDotKeys / 2>(tile.keys + half, head_dim, packed + h * head_dim,
                                         logits + h * kTileTokens + half);
        }
      }
    }
    for (; h < num_heads; h += kDotHeads) {
      DotKeys<kDim, 1, kDotKeys>(tile.keys + t, head_dim, packed + h * head_dim,
                                 logits + h * kTileTokens + t);
    }
  }
  if constexpr (kHasScale<T>) MultiplyByScales(tile, /*of_values=*/false, num_heads, logits);
}

// Calls fn(integral_constant head_dim if the compiler is to know it, else 0; a value of the rows'
// type).
template <class Fn>
void WithRowType(const KvLayout& kv, const Fn& fn) {
  WithElementType(kv.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BF16> || std::is_same_v<T, I8>) {
      if (kv.head_dim == 64) return fn(std::integral_constant<int, 64>(), element);
      if (kv.head_dim == 128) return fn(std::integral_constant<int, 128>(), element);
    }
    fn(std::integral_constant<int, 0>(), element);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // TOKENBUTLER_KEY_DOTS_INL_H_
