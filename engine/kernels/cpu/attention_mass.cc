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

// Up to kTileHeads of the queries, numbered row * group_size + head, one after the other.
struct QueryBatch {
  int first = 0, size = 0;
  int limits[kTileHeads];  // tokens that each may see, ascending
  int last_limit = 0;
  alignas(64) float queries[kTileHeads * kMaxHeadDim];

  QueryBatch(const AttentionMassParams& p, int batch) {
    const int head_dim = p.layout.head_dim;
    first = batch * kTileHeads;
    size = std::min(kTileHeads, p.num_rows * p.group_size - first);
    for (int i = 0; i < size; ++i) {
      const int row = (first + i) / p.group_size, head = (first + i) % p.group_size;
      const float* query = p.queries + row * p.stride + static_cast<size_t>(head) * head_dim;
      std::copy_n(query, head_dim, queries + static_cast<size_t>(i) * head_dim);
      limits[i] = last_limit = p.first_position + row + 1;
    }
  }
};

// The tile of the tokens from `begin`, a multiple of kTileTokens, none of them from `end` on.
template <class T>
void FillTile(const AttentionMassParams& p, int begin, int end, TileRows<T>* tile) {
  const KvLayout& kv = p.layout;
  tile->num_tokens = std::min(kTileTokens, end - begin);
  for (int i = 0; i < tile->num_tokens; ++i) {
    const int t = begin + i;
    tile->keys[i] =
        reinterpret_cast<const T*>(p.blocks[t / kv.block_size] + kv.key_offset(p.layer, p.kv_head) +
                                   (t % kv.block_size) * kv.row_bytes());
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

template <class T>
void BatchLse(const AttentionMassParams& p, int index) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const QueryBatch batch(p, index);
  float maxes[kTileHeads], sums[kTileHeads];
  std::fill_n(maxes, kTileHeads, kMasked);
  std::fill_n(sums, kTileHeads, 0.0f);
  alignas(64) TileLogits logits;
  TileRows<T> tile;
  for (int begin = 0; begin < batch.last_limit; begin += kTileTokens) {
    FillTile(p, begin, batch.last_limit, &tile);
    TileDots<T>(tile, nullptr, p.layout.head_dim, batch.queries, batch.size, logits);
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

// Adds all queries' weights to the mass of tokens [begin, end); `begin` is a multiple of
// kTileTokens.
template <class T>
void AddMass(const AttentionMassParams& p, int begin, int end) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int num_batches = (p.num_rows * p.group_size + kTileHeads - 1) / kTileHeads;
  alignas(64) TileLogits logits;
  alignas(64) float mass[kTileTokens];
  TileRows<T> tile;
  for (; begin < end; begin += kTileTokens) {
    FillTile(p, begin, end, &tile);
    std::fill_n(mass, kTileTokens, 0.0f);
    std::copy_n(p.mass + begin, tile.num_tokens, mass);
    for (int b = 0; b < num_batches; ++b) {
      const QueryBatch batch(p, b);
      if (batch.last_limit <= begin) continue;
      TileDots<T>(tile, nullptr, p.layout.head_dim, batch.queries, batch.size, logits);
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
    std::copy_n(mass, tile.num_tokens, p.mass + begin);
  }
}

void AnyBatchLse(const AttentionMassParams& p, int batch) {
  switch (p.layout.dtype) {
    case DType::kBF16:
      return BatchLse<BF16>(p, batch);
    case DType::kF16:
      return BatchLse<F16>(p, batch);
    default:
      return BatchLse<float>(p, batch);
  }
}

void AddAnyMass(const AttentionMassParams& p, int begin, int end) {
  switch (p.layout.dtype) {
    case DType::kBF16:
      return AddMass<BF16>(p, begin, end);
    case DType::kF16:
      return AddMass<F16>(p, begin, end);
    default:
      return AddMass<float>(p, begin, end);
  }
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
  constexpr int kRangeTokens = 512;  // whole tiles
  const int num_tokens = p.first_position + p.num_rows;
  if (p.num_rows == 0) return;
  const int num_queries = p.num_rows * p.group_size;
  pool.ParallelFor((num_queries + kAttentionMassBatch - 1) / kAttentionMassBatch, [&](int batch) {
    HWY_DYNAMIC_DISPATCH(AnyBatchLse)(p, batch);
  });
  pool.ParallelFor((num_tokens + kRangeTokens - 1) / kRangeTokens, [&](int range) {
    const int begin = range * kRangeTokens;
    HWY_DYNAMIC_DISPATCH(AddAnyMass)(p, begin, std::min(begin + kRangeTokens, num_tokens));
  });
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
