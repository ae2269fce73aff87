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

#include "engine/kernels/cpu/exp_of_negative-inl.h"
#include "engine/kernels/cpu/key_dots-inl.h"
#include "engine/kernels/online_softmax.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Query heads that share one pass over the value rows.
HWY_MAYBE_UNUSED constexpr int kPassHeads = HWY_TARGET == HWY_AVX3 ? kTileHeads : 4;

// Calls fn(integral_constant number of heads, first head) for each pass that `num_heads` heads
// need.
template <class Fn>
HWY_INLINE void ForEachHeadPass(int num_heads, const Fn& fn) {
  int head = 0;
  for (; head + kPassHeads <= num_heads; head += kPassHeads) {
    fn(std::integral_constant<int, kPassHeads>(), head);
  }
  if constexpr (kPassHeads > 4) {
    if (num_heads - head == 7) return fn(std::integral_constant<int, 7>(), head);
    if (num_heads - head == 6) return fn(std::integral_constant<int, 6>(), head);
    if (num_heads - head == 5) return fn(std::integral_constant<int, 5>(), head);
    if (num_heads - head == 4) return fn(std::integral_constant<int, 4>(), head);
  }
  if (num_heads - head == 3) return fn(std::integral_constant<int, 3>(), head);
  if (num_heads - head == 2) return fn(std::integral_constant<int, 2>(), head);
  if (num_heads - head == 1) return fn(std::integral_constant<int, 1>(), head);
}

// A few cached tokens of one KV head and the queries that attend to them.
template <class T>
struct AttentionTile {
  const TileRows<T>* rows = nullptr;
  const TileRows<T>* next = nullptr;  // the tile that comes next, fetched meanwhile, or null
  bool fetch_next_keys = true;        // false: the caller has, only the values are left
  size_t values_after_keys = 0;       // elements from a key row to its value row
  int head_dim = 0;
  const float* queries = nullptr;  // [num_queries, head_dim], by PackQueries<T>
  int num_queries = 0;
  float softmax_scale = 1;
  OnlineSoftmaxState* states = nullptr;  // [num_queries]; the tile's tokens are added
  // [num_queries] arrays whose elements from first_token on take the scaled logits, or null.
  float* const* logits_out = nullptr;
  size_t first_token = 0;
};

// Turns dots into weights exp(logit - new max) for num_heads <= kTileHeads heads, adds them to the
// states' sums and leaves in rescale[h] what the older sums had to be multiplied by.
template <class T>
HWY_NOINLINE void SoftmaxTile(const AttentionTile<T>& tile, int first_head, int num_heads,
                              float* logits, float* rescale) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int num_tokens = tile.rows->num_tokens;
  const int padded = (num_tokens + lanes - 1) / lanes * lanes;
  const auto scale = hn::Set(d, tile.softmax_scale);
  OnlineSoftmaxState* states = tile.states + first_head;
  HWY_ALIGN float growth[HWY_MAX(kTileHeads, 16)] = {};
  for (int h = 0; h < num_heads; ++h) {
    float* row = logits + h * kTileTokens;
    // Finite, far below any logit: weight 0.
    for (int t = num_tokens; t < padded; ++t) row[t] = -1e30f / tile.softmax_scale;
    auto max = hn::Set(d, states[h].max);
    for (int t = 0; t < padded; t += lanes) {
      const auto scaled = hn::Mul(hn::LoadU(d, row + t), scale);
      hn::StoreU(scaled, d, row + t);
      max = hn::Max(max, scaled);
    }
    if (tile.logits_out != nullptr) {
      std::copy_n(row, num_tokens, tile.logits_out[first_head + h] + tile.first_token);
    }
    const float new_max = hn::GetLane(hn::MaxOfLanes(d, max));
    growth[h] = states[h].max - new_max;  // -inf before the first token
    states[h].max = new_max;
  }
  // One vector or two of exponentials for all heads.
  for (int h = 0; h < num_heads; h += lanes) {
    hn::StoreU(ExpOfNegative(hn::LoadU(d, growth + h)), d, growth + h);
  }
  for (int h = 0; h < num_heads; ++h) {
    float* row = logits + h * kTileTokens;
    const auto max = hn::Set(d, states[h].max);
    auto sum = hn::Zero(d);
    for (int t = 0; t < padded; t += lanes) {
      const auto weight = ExpOfNegative(hn::Sub(hn::LoadU(d, row + t), max));
      hn::StoreU(weight, d, row + t);
      sum = hn::Add(sum, weight);
    }
    rescale[h] = states[h].sum == 0.0f ? 0.0f : growth[h];
    states[h].sum = states[h].sum * rescale[h] + hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// acc[h][dim, dim + kVecs * lanes) = acc * rescale[h] + sum_t weights[h][t] * value[t], in the
// order of the tokens. Fetches these elements of the next tile's values meanwhile when `prefetch`.
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
  const bool begins_line = dim * sizeof(T) % 64 == 0;  // else an earlier pass has fetched it
  const int num_fetched = prefetch && begins_line ? tile.next->num_tokens : 0;
  for (int t = 0; t < num_tokens; ++t) {
    const T* value = tile.rows->keys[t] + offset;
    if (t < num_fetched) PrefetchRow(tile.next->keys[t] + offset, kVecs * kLanes);
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
HWY_NOINLINE void AddAllValues(const AttentionTile<T>& tile, int head, const float* weights,
                               const float* rescale) {
  constexpr int kVecs = kHeads <= 4 && HWY_TARGET == HWY_AVX3 ? 4 : 2;
  const size_t lanes = hn::Lanes(FloatTag());
  // The passes share the fetching: memory has something to do all the time.
  const bool prefetch = head == 0 && tile.next != nullptr;
  size_t dim = 0;
  for (; dim + kVecs * lanes <= tile.head_dim; dim += kVecs * lanes) {
    AddValues<kHeads, kVecs>(tile, head, prefetch, weights, rescale, dim);
  }
  for (; dim + lanes <= tile.head_dim; dim += lanes) {
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
template <int kDim, class T>
HWY_INLINE void AttendTile(const AttentionTile<T>& tile) {
  HWY_ALIGN TileLogits logits;
  float rescale[kTileHeads];
  for (int first = 0; first < tile.num_queries; first += kTileHeads) {
    const int num_heads = std::min(kTileHeads, tile.num_queries - first);
    TileDots<kDim, T>(*tile.rows, first == 0 && tile.fetch_next_keys ? tile.next : nullptr,
                      tile.head_dim, tile.queries + first * tile.head_dim, num_heads, logits);
    SoftmaxTile(tile, first, num_heads, logits, rescale);
    if constexpr (kHasScale<T>) {
      MultiplyByScales(*tile.rows, /*of_values=*/true, num_heads, logits);
    }
    ForEachHeadPass(num_heads, [&](auto heads, int h) HWY_ATTR {
      AddAllValues<heads.value>(tile, first + h, logits + h * kTileTokens, rescale + h);
    });
  }
  // A longer tile's last value rows.
  for (int t = tile.rows->num_tokens; tile.next != nullptr && t < tile.next->num_tokens; ++t) {
    PrefetchRow(tile.next->keys[t] + tile.values_after_keys, tile.head_dim);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // TOKENBUTLER_ATTEND_TILE_INL_H_
