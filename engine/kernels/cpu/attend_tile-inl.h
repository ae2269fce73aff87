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

#include "engine/kernels/cpu/key_dots-inl.h"
#include "engine/kernels/online_softmax.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// A few cached tokens of one KV head and the queries that attend to them.
template <class T>
struct AttentionTile {
  const TileRows<T>* rows = nullptr;
  const TileRows<T>* next = nullptr;  // the tile that comes next, fetched meanwhile, or null
  size_t values_after_keys = 0;       // elements from a key row to its value row
  size_t head_dim = 0;
  const float* queries = nullptr;  // [num_queries, head_dim]
  int num_queries = 0;
  float softmax_scale = 1;
  OnlineSoftmaxState* states = nullptr;  // [num_queries]; the tile's tokens are added
  // [num_queries] arrays whose elements from first_token on take the scaled logits, or null.
  float* const* logits_out = nullptr;
  size_t first_token = 0;
};

// Turns one head's dots into exp(logit - new max) and returns what the sums so far must be
// multiplied by. Leaves the logits in `logits_out` if that is not null.
HWY_INLINE float SoftmaxTile(float softmax_scale, int num_tokens, float* logits,
                             OnlineSoftmaxState* state, float* logits_out) {
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
  if (logits_out != nullptr) std::copy_n(logits, num_tokens, logits_out);
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

// acc[h][dim, dim + kVecs * lanes) = acc * rescale[h] + sum_t weights[h][t] * value[t], in the
// order of the tokens. Fetches the value rows of the next tile meanwhile when `prefetch`.
template <int kHeads, int kVecs, class T>
HWY_INLINE void AddValues(const AttentionTile<T>& tile, int head, bool prefetch,
                          const float* weights, const float* rescale, size_t dim) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVec acc[kHeads][kVecs];
  for (int h = 0; h < kHeads; ++h) {
    const FloatVec scale = hn::Set(d, rescale[h]);
    for (int v = 0; v < kVecs; ++v) {
      acc[h][v] = hn::Mul(hn::LoadU(d, tile.states[head + h].acc + dim + v * lanes), scale);
    }
  }
  const size_t offset = tile.values_after_keys + dim;
  const int num_tokens = tile.rows->num_tokens;
  const int num_fetched = prefetch ? tile.next->num_tokens : 0;
  for (int t = 0; t < num_tokens; ++t) {
    const T* value = tile.rows->keys[t] + offset;
    if (t < num_fetched) PrefetchRow(tile.next->keys[t] + tile.values_after_keys, tile.head_dim);
    FloatVec values[kVecs];
    for (int v = 0; v < kVecs; ++v) values[v] = LoadFloats(d, value + v * lanes);
    for (int h = 0; h < kHeads; ++h) {
      const FloatVec weight = hn::Set(d, weights[h * kTileTokens + t]);
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
HWY_INLINE void AddAllValues(const AttentionTile<T>& tile, int head, const float* weights,
                             const float* rescale) {
  constexpr int kVecs = kHeads <= 3 && HWY_TARGET == HWY_AVX3 ? 4 : 2;
  const size_t lanes = hn::Lanes(FloatTag());
  bool prefetch = head == 0 && tile.next != nullptr;
  size_t dim = 0;
  for (; dim + kVecs * lanes <= tile.head_dim; dim += kVecs * lanes, prefetch = false) {
    AddValues<kHeads, kVecs>(tile, head, prefetch, weights, rescale, dim);
  }
  for (; dim + lanes <= tile.head_dim; dim += lanes, prefetch = false) {
    AddValues<kHeads, 1>(tile, head, prefetch, weights, rescale, dim);
  }
  for (; dim < tile.head_dim; ++dim) {
    for (int h = 0; h < kHeads; ++h) {
      float sum = tile.states[head + h].acc[dim] * rescale[h];
      for (int t = 0; t < tile.rows->num_tokens; ++t) {
        sum += weights[h * kTileTokens + t] *
               LoadFloat(tile.rows->keys[t] + tile.values_after_keys + dim);
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
  const int num_tokens = tile.rows->num_tokens;
  for (int first = 0; first < tile.num_queries; first += kTileHeads) {
    const int num_heads = std::min(kTileHeads, tile.num_queries - first);
    TileDots(*tile.rows, first == 0 ? tile.next : nullptr, tile.head_dim,
             tile.queries + first * tile.head_dim, num_heads, logits);
    for (int h = 0; h < num_heads; ++h) {
      float* logits_out =
          tile.logits_out == nullptr ? nullptr : tile.logits_out[first + h] + tile.first_token;
      rescale[h] = SoftmaxTile(tile.softmax_scale, num_tokens, logits + h * kTileTokens,
                               &tile.states[first + h], logits_out);
    }
    ForEachHeadPass<kPassHeads<T>>(num_heads, [&](auto heads, int h) HWY_ATTR {
      AddAllValues<heads.value>(tile, first + h, logits + h * kTileTokens, rescale + h);
    });
  }
  // A longer tile's last value rows.
  for (int t = num_tokens; tile.next != nullptr && t < tile.next->num_tokens; ++t) {
    PrefetchRow(tile.next->keys[t] + tile.values_after_keys, tile.head_dim);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // TOKENBUTLER_ATTEND_TILE_INL_H_
