// Per-target building block of the attention kernels: included once per Highway target, hence no
// #pragma once.

#if defined(TOKENBUTLER_ATTEND_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKENBUTLER_ATTEND_TILE_INL_H_
#undef TOKENBUTLER_ATTEND_TILE_INL_H_
#else
#define TOKENBUTLER_ATTEND_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/cpu/dot_tile-inl.h"
#include "engine/kernels/online_softmax.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Tokens whose logits are taken together; their keys and values stay in the L1 cache.
HWY_MAYBE_UNUSED constexpr int kTileTokens = 64;
// Query heads that go through a tile together.
HWY_MAYBE_UNUSED constexpr int kTileHeads = 8;

// A few consecutive cached tokens of one KV head and the queries that attend to them.
template <class T>
struct AttentionTile {
  const T* keys = nullptr;       // [num_tokens, head_dim]
  const T* values = nullptr;     // [num_tokens, head_dim]
  const T* next_keys = nullptr;  // of the tile that comes next, fetched meanwhile
  int num_tokens = 0;            // <= kTileTokens
  size_t head_dim = 0;
  const float* queries = nullptr;  // [num_queries, head_dim]
  int num_queries = 0;
  float softmax_scale = 1;
  OnlineSoftmaxState* states = nullptr;  // [num_queries]; the tile's tokens are added
};

using TileLogits = float[kTileHeads][kTileTokens];

// Dots of kRows queries with four keys, into columns [token, token + 4) of their logits.
template <int kRows, class T>
HWY_INLINE void DotKeys(const AttentionTile<T>& tile, int head, int token,
                        float (*logits)[kTileTokens]) {
  const float* q[kRows];
  for (int r = 0; r < kRows; ++r) q[r] = tile.queries + (head + r) * tile.head_dim;
  const T* k[kTileOuts];
  for (int o = 0; o < kTileOuts; ++o) {
    k[o] = tile.keys + std::min(token + o, tile.num_tokens - 1) * tile.head_dim;
  }
  float dots[kRows][kTileOuts];
  DotTile<kRows, /*kPrefetch=*/false>(q, k, tile.head_dim, 0, dots);
  for (int r = 0; r < kRows; ++r) std::copy_n(dots[r], kTileOuts, logits[r] + token);
}

HWY_INLINE void PrefetchBytes(const void* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(data) + at);
  }
}

// logits[h][t] = query (first_head + h) . key t; the values of the tile are fetched meanwhile.
template <class T>
HWY_INLINE void QueryKeyDots(const AttentionTile<T>& tile, int first_head, int num_heads,
                             TileLogits& logits) {
  for (int t = 0; t < tile.num_tokens; t += kTileOuts) {
    PrefetchBytes(tile.values + t * tile.head_dim, kTileOuts * tile.head_dim * sizeof(T));
    ForEachRowTile(num_heads, [&](auto rows, int h) HWY_ATTR {
      DotKeys<rows.value>(tile, first_head + h, t, logits + h);
    });
  }
}

// Turns one head's dots into exp(logit - new max) and returns what the sums so far must be
// multiplied by.
HWY_INLINE float SoftmaxTile(float softmax_scale, int num_tokens, float* logits,
                             OnlineSoftmaxState* state) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int padded = (num_tokens + lanes - 1) / lanes * lanes;
  // Finite, far below any logit: weight 0.
  for (int t = num_tokens; t < padded; ++t) logits[t] = -1e30f / softmax_scale;
  const auto scale = hn::Set(d, softmax_scale);
  auto max = hn::Set(d, state->max);
  for (int t = 0; t < padded; t += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, logits + t), scale);
    hn::StoreU(scaled, d, logits + t);
    max = hn::Max(max, scaled);
  }
  const float new_max = hn::GetLane(hn::MaxOfLanes(d, max));
  const auto new_maxes = hn::Set(d, new_max);
  const auto lowest = hn::Set(d, -105.0f);  // exp is 0 in float32 from about -104 on
  auto sum = hn::Zero(d);
  for (int t = 0; t < padded; t += lanes) {
    const auto x = hn::Max(hn::Sub(hn::LoadU(d, logits + t), new_maxes), lowest);
    const auto weight = hn::Exp(d, x);
    hn::StoreU(weight, d, logits + t);
    sum = hn::Add(sum, weight);
  }
  const float rescale = state->sum == 0.0f ? 0.0f : std::exp(state->max - new_max);
  state->max = new_max;
  state->sum = state->sum * rescale + hn::GetLane(hn::SumOfLanes(d, sum));
  return rescale;
}

// acc[h][dim, dim + kVecs * lanes) = acc * rescale[h] + sum_t weights[h][t] * value[t].
// Fetches the same part of the next keys meanwhile when `prefetch`.
template <int kHeads, int kVecs, class T>
HWY_INLINE void AddValues(const AttentionTile<T>& tile, int head, bool prefetch,
                          const float (*weights)[kTileTokens], const float* rescale, size_t dim) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVec acc[kHeads][kVecs];
  for (int h = 0; h < kHeads; ++h) {
    const FloatVec scale = hn::Set(d, rescale[h]);
    for (int v = 0; v < kVecs; ++v) {
      acc[h][v] = hn::Mul(hn::LoadU(d, tile.states[head + h].acc + dim + v * lanes), scale);
    }
  }
  const T* value = tile.values + dim;
  for (int t = 0; t < tile.num_tokens; ++t, value += tile.head_dim) {
    FloatVec values[kVecs];
    for (int v = 0; v < kVecs; ++v) values[v] = LoadFloats(d, value + v * lanes);
    if (prefetch) {
      PrefetchBytes(tile.next_keys + t * tile.head_dim + dim, kVecs * lanes * sizeof(T));
    }
    for (int h = 0; h < kHeads; ++h) {
      const FloatVec weight = hn::Set(d, weights[h][t]);
      for (int v = 0; v < kVecs; ++v) acc[h][v] = hn::MulAdd(weight, values[v], acc[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVecs; ++v) {
      hn::StoreU(acc[h][v], d, tile.states[head + h].acc + dim + v * lanes);
    }
  }
}

template <int kHeads, class T>
HWY_INLINE void AddAllValues(const AttentionTile<T>& tile, int head,
                             const float (*weights)[kTileTokens], const float* rescale) {
  const size_t lanes = hn::Lanes(FloatTag());
  const bool prefetch = head == 0;
  size_t dim = 0;
  for (; dim + 4 * lanes <= tile.head_dim; dim += 4 * lanes) {
    AddValues<kHeads, 4>(tile, head, prefetch, weights, rescale, dim);
  }
  for (; dim + lanes <= tile.head_dim; dim += lanes) {
    AddValues<kHeads, 1>(tile, head, prefetch, weights, rescale, dim);
  }
  for (; dim < tile.head_dim; ++dim) {
    for (int h = 0; h < kHeads; ++h) {
      float sum = tile.states[head + h].acc[dim] * rescale[h];
      for (int t = 0; t < tile.num_tokens; ++t) {
        sum += weights[h][t] * LoadFloat(tile.values + t * tile.head_dim + dim);
      }
      tile.states[head + h].acc[dim] = sum;
    }
  }
}

// Adds the tile's tokens to the states of its queries: logits, softmax and sums in float32. The
// result of a query does not depend on the other queries.
template <class T>
HWY_INLINE void AttendTile(const AttentionTile<T>& tile) {
  HWY_ALIGN TileLogits logits;
  float rescale[kTileHeads];
  for (int first = 0; first < tile.num_queries; first += kTileHeads) {
    const int num_heads = std::min(kTileHeads, tile.num_queries - first);
    QueryKeyDots(tile, first, num_heads, logits);
    for (int h = 0; h < num_heads; ++h) {
      rescale[h] =
          SoftmaxTile(tile.softmax_scale, tile.num_tokens, logits[h], &tile.states[first + h]);
    }
    ForEachRowTile(num_heads, [&](auto heads, int h) HWY_ATTR {
      AddAllValues<heads.value>(tile, first + h, logits + h, rescale + h);
    });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // TOKENBUTLER_ATTEND_TILE_INL_H_
