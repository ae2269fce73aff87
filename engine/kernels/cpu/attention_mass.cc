#include "engine/kernels/attention_mass.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/attention_mass.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/key_dots-inl.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

constexpr int kMaxHeadDim = 512;
static_assert(kAttentionMassBatch == kTileHeads);
constexpr int kRangeTokens = kAttentionMassRange;

// Up to kTileHeads of the queries, numbered row * group_size + head.
template <class T>
struct QueryBatch {
  int first = 0, size = 0;
  int limits[kTileHeads];  // tokens that each may see, ascending
  int last_limit = 0;
  HWY_ALIGN float packed[kTileHeads * kMaxHeadDim];

  QueryBatch(const AttentionMassParams& p, int batch) {
    const int head_dim = p.layout.head_dim;
    float queries[kTileHeads * kMaxHeadDim];
    first = batch * kTileHeads;
    size = std::min(kTileHeads, p.num_rows * p.group_size - first);
    for (int i = 0; i < size; ++i) {
      const int row = (first + i) / p.group_size, head = (first + i) % p.group_size;
      const float* query = p.queries + row * p.stride + static_cast<size_t>(head) * head_dim;
      std::copy_n(query, head_dim, queries + static_cast<size_t>(i) * head_dim);
      limits[i] = last_limit = p.first_position + row + 1;
    }
    PackQueries<T>(queries, size, head_dim, packed);
  }
};

// The tile of the tokens from `begin`, a multiple of kTileTokens, none of them from `end` on.
template <class T>
void FillTile(const AttentionMassParams& p, int begin, int end, TileRows<T>* tile) {
  const HeadRows<T> rows(p.layout, p.layer, p.kv_head);
  tile->num_tokens = std::min(kTileTokens, end - begin);
  for (int i = 0; i < tile->num_tokens; ++i) {
    const auto token = static_cast<unsigned>(begin + i);
    tile->Set(i, rows, p.blocks[token / rows.block_size], token % rows.block_size);
  }
  tile->Pad();
}

// Finite, far below any logit: weight 0.
constexpr float kMasked = -1e30f;

// The tile's dots, at least `visible` of them, as logits; the others, up to a whole tile, masked.
HWY_INLINE void ToLogits(float softmax_scale, int visible, float* dots) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto scale = hn::Set(d, softmax_scale);
  for (int t = 0; t < visible; t += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, dots + t), scale), d, dots + t);
  }
  std::fill(dots + std::max(visible, 0), dots + kTileTokens, kMasked);
}

// exp(x - max), 0 for what is masked.
HWY_INLINE FloatVec ExpBelow(FloatTag d, FloatVec x, FloatVec max) {
  // exp is 0 in float32 from about -104 on.
  return hn::Exp(d, hn::Max(hn::Sub(x, max), hn::Set(d, -105.0f)));
}

template <int kDim, class T>
void BatchLse(const AttentionMassParams& p, int index) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const QueryBatch<T> batch(p, index);
  float maxes[kTileHeads], sums[kTileHeads];
  std::fill_n(maxes, kTileHeads, kMasked);
  std::fill_n(sums, kTileHeads, 0.0f);
  HWY_ALIGN TileLogits logits = {};
  TileRows<T> tile;
  for (int begin = 0; begin < batch.last_limit; begin += kTileTokens) {
    FillTile(p, begin, batch.last_limit, &tile);
    TileDots<kDim, T>(tile, nullptr, p.layout.head_dim, batch.packed, batch.size, logits);
    for (int i = 0; i < batch.size; ++i) {
      float* row = logits + i * kTileTokens;
      const int visible = std::min(batch.limits[i] - begin, kTileTokens);
      if (visible <= 0) continue;
      ToLogits(p.softmax_scale, visible, row);
      auto max = hn::Set(d, maxes[i]);
      for (int t = 0; t < kTileTokens; t += lanes) max = hn::Max(max, hn::LoadU(d, row + t));
      const float new_max = hn::GetLane(hn::MaxOfLanes(d, max));
      max = hn::Set(d, new_max);
      auto sum = hn::Zero(d);
      for (int t = 0; t < kTileTokens; t += lanes) {
        sum = hn::Add(sum, ExpBelow(d, hn::LoadU(d, row + t), max));
      }
      sums[i] = sums[i] * std::exp(maxes[i] - new_max) + hn::GetLane(hn::SumOfLanes(d, sum));
      maxes[i] = new_max;
    }
  }
  for (int i = 0; i < batch.size; ++i) p.lse[batch.first + i] = maxes[i] + std::log(sums[i]);
}

// Adds a batch's weights to the mass [tile.num_tokens, padded to a tile] of the tokens from
// `begin`.
template <int kDim, class T>
void AddBatch(const AttentionMassParams& p, const QueryBatch<T>& batch, const TileRows<T>& tile,
              int begin, float* mass) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  HWY_ALIGN TileLogits logits = {};
  TileDots<kDim, T>(tile, nullptr, p.layout.head_dim, batch.packed, batch.size, logits);
  for (int i = 0; i < batch.size; ++i) {
    float* row = logits + i * kTileTokens;
    const int visible = std::min(batch.limits[i] - begin, tile.num_tokens);
    if (visible <= 0) continue;
    ToLogits(p.softmax_scale, visible, row);
    const auto lse = hn::Set(d, p.lse[batch.first + i]);
    for (int t = 0; t < visible; t += lanes) {
      const auto weight = ExpBelow(d, hn::LoadU(d, row + t), lse);
      hn::StoreU(hn::Add(hn::LoadU(d, mass + t), weight), d, mass + t);
    }
  }
}

// Adds all queries' weights to the mass of tokens [begin, end), at most kRangeTokens; `begin` is a
// multiple of kTileTokens.
template <int kDim, class T>
void AddMass(const AttentionMassParams& p, int begin, int end) {
  constexpr int kMaxTiles = kRangeTokens / kTileTokens;
  const int num_batches = (p.num_rows * p.group_size + kTileHeads - 1) / kTileHeads;
  HWY_ALIGN float mass[kRangeTokens] = {};
  std::copy(p.mass + begin, p.mass + end, mass);
  TileRows<T> tiles[kMaxTiles];
  const int num_tiles = (end - begin + kTileTokens - 1) / kTileTokens;
  for (int i = 0; i < num_tiles; ++i) FillTile(p, begin + i * kTileTokens, end, &tiles[i]);
  for (int b = 0; b < num_batches; ++b) {
    const QueryBatch<T> batch(p, b);
    for (int i = 0; i < num_tiles && begin + i * kTileTokens < batch.last_limit; ++i) {
      AddBatch<kDim, T>(p, batch, tiles[i], begin + i * kTileTokens, mass + i * kTileTokens);
    }
  }
  std::copy(mass, mass + (end - begin), p.mass + begin);
}

void AnyBatchLse(const AttentionMassParams& p, int batch) {
  WithRowType(p.layout,
              [&](auto dim, auto element) { BatchLse<dim.value, decltype(element)>(p, batch); });
}

void AddAnyMass(const AttentionMassParams& p, int begin, int end) {
  WithRowType(p.layout, [&](auto dim, auto element) {
    AddMass<dim.value, decltype(element)>(p, begin, end);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(AnyBatchLse);
HWY_EXPORT(AddAnyMass);

void AttentionMass(const AttentionMassParams& p, ComputePool& pool) {
  const int num_tokens = p.first_position + p.num_rows;
  if (p.num_rows == 0) return;
  const int num_queries = p.num_rows * p.group_size;
  pool.ParallelFor((num_queries + kAttentionMassBatch - 1) / kAttentionMassBatch, [&](int batch) {
    HWY_DYNAMIC_DISPATCH(AnyBatchLse)(p, batch);
  });
  pool.ParallelFor((num_tokens + kAttentionMassRange - 1) / kAttentionMassRange, [&](int range) {
    const int begin = range * kAttentionMassRange;
    HWY_DYNAMIC_DISPATCH(AddAnyMass)(p, begin, std::min(begin + kAttentionMassRange, num_tokens));
  });
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
