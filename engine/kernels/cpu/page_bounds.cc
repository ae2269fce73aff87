#include "engine/kernels/page_bounds.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/linear.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/page_bounds.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/key_dots-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// The scale of a page's key.
template <class T>
HWY_INLINE float KeyScale(const float* scales, int token) {
  return kHasScale<T> ? scales[token * KvLayout::kScalesPerToken] : 1.0f;
}

// max[c], min[c] of channel c over the page.
template <class T>
void BoundsOfPage(const T* keys, const float* scales, int head_dim, float* max, float* min) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  // Times 1 changes nothing.
  const auto load = [&](int t, int c) HWY_ATTR {
    return hn::Mul(LoadFloats(d, keys + static_cast<size_t>(t) * head_dim + c),
                   hn::Set(d, KeyScale<T>(scales, t)));
  };
  int c = 0;
  for (; c + lanes <= head_dim; c += lanes) {
    FloatVec high = load(0, c), low = high;
    for (int t = 1; t < kPageTokens; ++t) {
      const FloatVec key = load(t, c);
      high = hn::Max(high, key);
      low = hn::Min(low, key);
    }
    hn::StoreU(high, d, max + c);
    hn::StoreU(low, d, min + c);
  }
  for (; c < head_dim; ++c) {
    max[c] = min[c] = KeyScale<T>(scales, 0) * LoadFloat(keys + c);
    for (int t = 1; t < kPageTokens; ++t) {
      const float key =
          KeyScale<T>(scales, t) * LoadFloat(keys + static_cast<size_t>(t) * head_dim + c);
      max[c] = std::max(max[c], key);
      min[c] = std::min(min[c], key);
    }
  }
}

// `bounds` [2, head_dim] of one page.
void PageBoundsToFloats(const PageBoundsParams& p, int page, float* bounds) {
  const size_t at = static_cast<size_t>(page) * kPageTokens * p.head_dim;
  const float* scales = p.key_scales;
  if (scales != nullptr) scales += page * kPageTokens * KvLayout::kScalesPerToken;
  WithElementType(p.dtype, [&](auto element) {
    const auto* keys = static_cast<const decltype(element)*>(p.keys) + at;
    BoundsOfPage(keys, scales, p.head_dim, bounds, bounds + p.head_dim);
  });
}

// A product with the maximum where the query is positive, with the minimum where it is negative:
// the score is one dot of the bounds with the query's positive part followed by its negative part.
template <int kDim, class T>
void ScorePages(const PageScoresParams& p, const PageScoresParams::Head& head, int begin, int end) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int dim = 2 * p.head_dim;
  float queries[kTileHeads * 2 * kMaxPageHeadDim];
  HWY_ALIGN float packed[kTileHeads * 2 * kMaxPageHeadDim];
  HWY_ALIGN TileLogits dots = {};
  TileRows<T> rows[2];
  const auto fill = [&](int page, TileRows<T>* tile) {
    tile->num_tokens = std::min(kTileTokens, end - page);
    for (int i = 0; i < tile->num_tokens; ++i, ++page) {
      const int record = page / p.pages_per_record;
      const std::byte* bounds = head.runs[record / p.records_per_run] + head.offset +
                                static_cast<size_t>(record % p.records_per_run) * p.record_bytes;
      tile->keys[i] = reinterpret_cast<const T*>(bounds) + (page % p.pages_per_record) * dim;
    }
    tile->Pad();
  };
  for (int first = 0; first < p.group_size; first += kTileHeads) {
    const int num_heads = std::min(kTileHeads, p.group_size - first);
    for (int h = 0; h < num_heads; ++h) {
      const float* query = head.queries + static_cast<size_t>(first + h) * p.head_dim;
      float* parts = queries + h * dim;
      for (int c = 0; c < p.head_dim; ++c) {
        parts[c] = std::max(query[c], 0.0f);
        parts[p.head_dim + c] = std::min(query[c], 0.0f);
      }
    }
    PackQueries<T>(queries, num_heads, dim, packed);
    int which = 0;
    fill(begin, &rows[0]);
    for (int page = begin; page < end; page += kTileTokens, which = 1 - which) {
      const bool has_next = page + kTileTokens < end;
      if (has_next) fill(page + kTileTokens, &rows[1 - which]);
      const int num_pages = rows[which].num_tokens;
      TileDots<kDim, T>(rows[which], has_next ? &rows[1 - which] : nullptr, dim, packed, num_heads,
                        dots);
      float* scores = head.scores + page;
      for (int i = 0; i < num_pages; i += lanes) {
        auto best = hn::LoadU(d, dots + i);
        for (int h = 1; h < num_heads; ++h) {
          best = hn::Max(best, hn::LoadU(d, dots + h * kTileTokens + i));
        }
        HWY_ALIGN float lane_scores[hn::MaxLanes(FloatTag())];
        hn::Store(best, d, lane_scores);
        for (int lane = 0; lane < std::min(lanes, num_pages - i); ++lane) {
          scores[i + lane] =
              first == 0 ? lane_scores[lane] : std::max(scores[i + lane], lane_scores[lane]);
        }
      }
    }
  }
}

void ScorePageRange(const PageScoresParams& p, const PageScoresParams::Head& head, int begin,
                    int end) {
  switch (p.dtype) {
    case DType::kBF16:
      if (p.head_dim == 64) return ScorePages<128, BF16>(p, head, begin, end);
      return ScorePages<0, BF16>(p, head, begin, end);
    case DType::kF16:
      return ScorePages<0, F16>(p, head, begin, end);
    default:
      return ScorePages<0, float>(p, head, begin, end);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(PageBoundsToFloats);
HWY_EXPORT(ScorePageRange);

void PageBounds(const PageBoundsParams& p) {
  float bounds[2 * kMaxPageHeadDim];
  const size_t size = 2 * static_cast<size_t>(p.head_dim);
  for (int page = 0; page < p.num_pages; ++page) {
    HWY_DYNAMIC_DISPATCH(PageBoundsToFloats)(p, page, bounds);
    // Exact: the type holds every key.
    const DType dtype = PageBoundsDType(p.dtype);
    if (dtype == DType::kBF16) {
      RoundToBf16(bounds, static_cast<int>(size), static_cast<BF16*>(p.bounds) + page * size);
      continue;
    }
    for (size_t i = 0; i < size; ++i) StoreElement(p.bounds, dtype, page * size + i, bounds[i]);
  }
}

void PageScores(const PageScoresParams& p, ComputePool& pool) {
  constexpr int kRangePages = 1024;  // 16K tokens
  const int num_ranges = (p.num_pages + kRangePages - 1) / kRangePages;
  pool.ParallelFor(static_cast<int>(p.heads.size()) * num_ranges, [&](int task) {
    const int begin = task % num_ranges * kRangePages;
    HWY_DYNAMIC_DISPATCH(ScorePageRange)
    (p, p.heads[task / num_ranges], begin, std::min(begin + kRangePages, p.num_pages));
  });
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
