#include "engine/kernels/key_scores.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "engine/kernels/online_softmax.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/key_scores.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/attend_tile-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// scores[t] = max(scores[t], max_h (softmax_scale * logits[h][t] - lse[h])) for a tile's tokens.
HWY_INLINE void PoolLogits(const float* logits, int num_heads, int num_tokens, float softmax_scale,
                           const float* lse, float* scores) {
  const FloatTag d;
  const auto scale = hn::Set(d, softmax_scale);
  for (int t = 0; t < num_tokens; t += kLanes) {
    const bool whole = t + kLanes <= num_tokens;
    HWY_ALIGN float part[kLanes];
    if (!whole) std::copy_n(scores + t, num_tokens - t, part);
    FloatVec best = whole ? hn::LoadU(d, scores + t) : hn::Load(d, part);
    for (int h = 0; h < num_heads; ++h) {
      const FloatVec logit = hn::Mul(hn::LoadU(d, logits + h * kTileTokens + t), scale);
      best = hn::Max(best, lse == nullptr ? logit : hn::Sub(logit, hn::Set(d, lse[h])));
    }
    if (whole) {
      hn::StoreU(best, d, scores + t);
    } else {
      hn::Store(best, d, part);
      std::copy_n(part, num_tokens - t, scores + t);
    }
  }
}

// The tile of positions from `at` on, before `end`.
template <class T>
HWY_INLINE void FillTile(const KeyScoresParams& p, const HeadRows<T>& rows, int at, int end,
                         TileRows<T>* tile) {
  if (p.tokens == nullptr) return tile->FillRun(rows, p.blocks, at, end);
  const unsigned block_size = rows.block_size;
  tile->num_tokens = std::min(end - at, kTileTokens - (at - p.begin) % kTileTokens);
  for (int i = 0; i < tile->num_tokens; ++i) {
    const auto token = static_cast<unsigned>(p.tokens[at + i]);
    tile->Set(i, rows, p.blocks[token / block_size], token % block_size);
  }
  tile->Pad();
}

// Tokens [begin, end) for the heads [first_head, first_head + num_heads); adds to `states`
// [group_size] unless null.
template <int kDim, class T>
void ScoreHeads(const KeyScoresParams& p, int begin, int end, int first_head, int num_heads,
                OnlineSoftmaxState* states) {
  const int head_dim = p.layout.head_dim;
  const HeadRows<T> head_rows(p.layout, p.layer, p.kv_head);
  HWY_ALIGN float packed[kMaxPackedFloats];
  HWY_ALIGN TileLogits logits = {};
  float rescale[kTileHeads];
  PackQueries<T>(p.query + static_cast<size_t>(first_head) * head_dim, num_heads, head_dim, packed);
  TileRows<T> rows[2];
  FillTile(p, head_rows, begin, end, &rows[0]);
  PrefetchKeys(rows[0], head_dim);
  int which = 0;
  for (int at = begin; at < end; which = 1 - which) {
    const TileRows<T>& tile = rows[which];
    const int next = at + tile.num_tokens;
    if (next < end) FillTile(p, head_rows, next, end, &rows[1 - which]);
    for (int h = 0; h < num_heads; h += kTileHeads) {
      const int heads = std::min(kTileHeads, num_heads - h);
      const int head = first_head + h;
      TileDots<kDim, T>(tile, h == 0 && next < end ? &rows[1 - which] : nullptr, head_dim,
                        packed + h * head_dim, heads, logits);
      PoolLogits(logits, heads, tile.num_tokens, p.softmax_scale,
                 p.lse == nullptr ? nullptr : p.lse + head, p.scores + (at - p.begin));
      if (states == nullptr) continue;
      const AttentionTile<T> sums{
          .rows = &tile, .softmax_scale = p.softmax_scale, .states = states + head};
      SoftmaxTile(sums, 0, heads, logits, rescale);
    }
    at = next;
  }
}

template <int kDim, class T>
void ScoreRangeOf(const KeyScoresParams& p, int begin, int end, OnlineSoftmaxState* states) {
  std::fill(p.scores + (begin - p.begin), p.scores + (end - p.begin),
            -std::numeric_limits<float>::infinity());
  const int max_heads = MaxPackedHeads(p.layout.head_dim);
  for (int first = 0; first < p.group_size; first += max_heads) {
    ScoreHeads<kDim, T>(p, begin, end, first, std::min(max_heads, p.group_size - first), states);
  }
}

void ScoreRange(const KeyScoresParams& p, int begin, int end, OnlineSoftmaxState* states) {
  WithRowType(p.layout, [&](auto dim, auto element) {
    ScoreRangeOf<dim.value, decltype(element)>(p, begin, end, states);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(ScoreRange);

namespace {

// Tokens are cut into at most kMaxRanges ranges of at least kMinRangeTokens, multiples of the tile.
constexpr int kMaxRanges = 64;
constexpr int kMinRangeTokens = 1024;
constexpr int kRangeAlign = 64;

int RangeTokens(const KeyScoresParams& p) {
  const int share = (p.end - p.begin + kMaxRanges - 1) / kMaxRanges;
  return std::max(kMinRangeTokens, (share + kRangeAlign - 1) / kRangeAlign * kRangeAlign);
}
int NumRanges(const KeyScoresParams& p) {
  const int range_tokens = RangeTokens(p);
  return (std::max(0, p.end - p.begin) + range_tokens - 1) / range_tokens;
}

// States of a range's heads, on cache lines of their own.
size_t RangeStates(int group_size) {
  constexpr size_t kPerLine = 64 / sizeof(OnlineSoftmaxState);
  return (group_size + kPerLine - 1) / kPerLine * kPerLine;
}

// Those of one range, or null when no lse is wanted.
OnlineSoftmaxState* StatesOf(const KeyScoresParams& p, int range) {
  if (p.lse_out == nullptr) return nullptr;
  return reinterpret_cast<OnlineSoftmaxState*>(p.workspace) + range * RangeStates(p.group_size);
}

void MergeStates(const KeyScoresParams& p) {
  for (int h = 0; p.lse_out != nullptr && h < p.group_size; ++h) {
    OnlineSoftmaxState all;
    for (int range = 0; range < NumRanges(p); ++range) {
      all.Merge(StatesOf(p, range)[h], /*head_dim=*/0);
    }
    p.lse_out[h] = all.lse();
  }
}

}  // namespace

size_t KeyScoresWorkspaceFloats(int group_size) {
  return kMaxRanges * RangeStates(group_size) * sizeof(OnlineSoftmaxState) / sizeof(float);
}

void KeyScores(const KeyScoresParams& params, ComputePool& pool) {
  KeyScores(absl::MakeConstSpan(&params, 1), pool);
}

void KeyScores(absl::Span<const KeyScoresParams> params, ComputePool& pool) {
  int max_ranges = 0;
  for (const KeyScoresParams& p : params) max_ranges = std::max(max_ranges, NumRanges(p));
  pool.ParallelFor(static_cast<int>(params.size()) * max_ranges, [&](int task) {
    const KeyScoresParams& p = params[task / max_ranges];
    const int range = task % max_ranges, range_tokens = RangeTokens(p);
    if (range >= NumRanges(p)) return;
    OnlineSoftmaxState* states = StatesOf(p, range);
    for (int h = 0; states != nullptr && h < p.group_size; ++h) new (&states[h]) OnlineSoftmaxState;
    const int begin = p.begin + range * range_tokens;
    HWY_DYNAMIC_DISPATCH(ScoreRange)(p, begin, std::min(begin + range_tokens, p.end), states);
  });
  for (const KeyScoresParams& p : params) MergeStates(p);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
