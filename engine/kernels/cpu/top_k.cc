#include "engine/kernels/top_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/top_k.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#ifndef TOKENBUTLER_TOP_K_SUMMARY_
#define TOKENBUTLER_TOP_K_SUMMARY_
namespace tokenbutler {

// Of the numbers among some scores.
struct ScoreSummary {
  int num_numbers = 0;  // not NaN
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
};

}  // namespace tokenbutler
#endif  // TOKENBUTLER_TOP_K_SUMMARY_

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;

void Summarise(const float* scores, int n, ScoreSummary* summary) {
  const FloatTag d;
  const IntTag di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto low = hn::Set(d, summary->min), high = hn::Set(d, summary->max);
  auto numbers = hn::Zero(di);
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    const auto is_number = hn::Eq(v, v);
    low = hn::IfThenElse(hn::Lt(v, low), v, low);
    high = hn::IfThenElse(hn::Gt(v, high), v, high);
    numbers = hn::Sub(numbers, hn::VecFromMask(di, hn::RebindMask(di, is_number)));
  }
  summary->min = hn::GetLane(hn::MinOfLanes(d, low));
  summary->max = hn::GetLane(hn::MaxOfLanes(d, high));
  summary->num_numbers = hn::GetLane(hn::SumOfLanes(di, numbers));
  for (; i < n; ++i) {
    if (scores[i] < summary->min) summary->min = scores[i];
    if (scores[i] > summary->max) summary->max = scores[i];
    if (!std::isnan(scores[i])) ++summary->num_numbers;
  }
}

int CountAbove(const float* scores, int n, float threshold) {
  const FloatTag d;
  const IntTag di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  auto counts0 = hn::Zero(di), counts1 = hn::Zero(di);
  int i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto above0 = hn::Gt(hn::LoadU(d, scores + i), limit);
    const auto above1 = hn::Gt(hn::LoadU(d, scores + i + lanes), limit);
    counts0 = hn::Sub(counts0, hn::VecFromMask(di, hn::RebindMask(di, above0)));
    counts1 = hn::Sub(counts1, hn::VecFromMask(di, hn::RebindMask(di, above1)));
  }
  int count = hn::GetLane(hn::SumOfLanes(di, hn::Add(counts0, counts1)));
  for (; i < n; ++i) count += scores[i] > threshold;
  return count;
}

// Copies the scores within [low, high] in order. `out` has room for a vector more than there are.
int Within(const float* scores, int n, float low, float high, float* out) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int count = 0, i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    const auto inside = hn::And(hn::Ge(v, hn::Set(d, low)), hn::Le(v, hn::Set(d, high)));
    hn::StoreU(hn::Compress(v, inside), d, out + count);
    count += static_cast<int>(hn::CountTrue(d, inside));
  }
  for (; i < n; ++i) {
    if (scores[i] >= low && scores[i] <= high) out[count++] = scores[i];
  }
  return count;
}

// Positions of scores above `threshold` and of the first `num_ties` equal to it, ascending.
int WritePositions(const float* scores, int n, float threshold, int num_ties, int32_t* out) {
  const FloatTag d;
  const IntTag di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  auto positions = hn::Iota(di, 0);
  int count = 0, i = 0;
  const auto one = [&](int at) {
    const bool is_tie = scores[at] == threshold && num_ties > 0;
    num_ties -= is_tie;
    if (is_tie || scores[at] > threshold) out[count++] = at;
  };
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    if (HWY_UNLIKELY(num_ties > 0 && !hn::AllFalse(d, hn::Eq(v, limit)))) {
      for (int lane = 0; lane < lanes; ++lane) one(i + lane);
    } else {
      const auto above = hn::RebindMask(di, hn::Gt(v, limit));
      hn::StoreU(hn::Compress(positions, above), di, out + count);
      count += static_cast<int>(hn::CountTrue(di, above));
    }
    positions = hn::Add(positions, hn::Set(di, lanes));
  }
  for (; i < n; ++i) one(i);
  return count;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(Summarise);
HWY_EXPORT(CountAbove);
HWY_EXPORT(Within);
HWY_EXPORT(WritePositions);

namespace {

// Scores that are copied when the search has narrowed down to them, so that it goes on in the L1
// cache.
constexpr int kMaxCopied = 4096;
// So few are sorted out one by one.
constexpr int kFew = 32;

// Integers in the order of the floats they stand for (-0 right below 0).
int32_t OrderedKey(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
float FromOrderedKey(int32_t key) { return std::bit_cast<float>(key < 0 ? key ^ 0x7fffffff : key); }

// Bisection of the values between the extremes: each pass over the scores counts those above the
// middle. About two passes per factor of two until few are left between the bounds.
// REQUIRES: 1 <= k <= summary.num_numbers.
float SearchKth(const float* scores, int n, int k, const ScoreSummary& summary) {
  float copied[kMaxCopied + 16];
  bool is_copied = false;
  int32_t low = OrderedKey(summary.min), high = OrderedKey(summary.max);
  int at_least_low = summary.num_numbers, above_high = 0;  // of the scores not cut off yet
  while (low < high) {
    const int between = at_least_low - above_high;
    if (between <= (is_copied ? kFew : kMaxCopied)) {
      n = HWY_DYNAMIC_DISPATCH(Within)(scores, n, FromOrderedKey(low), FromOrderedKey(high),
                                       copied);
      scores = copied;
      k -= above_high;
      at_least_low = n;
      above_high = 0;
      is_copied = true;
      if (n <= kFew) {
        std::nth_element(copied, copied + (k - 1), copied + n, std::greater<float>());
        return copied[k - 1];
      }
    }
    const auto middle = static_cast<int32_t>(low + (int64_t{high} - low) / 2);
    const int above = HWY_DYNAMIC_DISPATCH(CountAbove)(scores, n, FromOrderedKey(middle));
    if (above >= k) {
      low = middle + 1;
      at_least_low = above;
    } else {
      high = middle;
      above_high = above;
    }
  }
  return FromOrderedKey(low);
}

}  // namespace

float KthLargest(const float* scores, int n, int k) {
  ScoreSummary summary;
  HWY_DYNAMIC_DISPATCH(Summarise)(scores, n, &summary);
  if (k > summary.num_numbers) return -std::numeric_limits<float>::infinity();
  return SearchKth(scores, n, k, summary);
}

int TopK(const float* scores, int n, int k, int32_t* indices) {
  k = std::clamp(k, 0, std::max(n, 0));
  if (k == 0) return 0;
  if (k == n) {
    for (int i = 0; i < n; ++i) indices[i] = i;
    return n;
  }
  ScoreSummary summary;
  HWY_DYNAMIC_DISPATCH(Summarise)(scores, n, &summary);
  if (k > summary.num_numbers) {
    int num_nans = k - summary.num_numbers, count = 0;
    for (int i = 0; i < n; ++i) {
      if (!std::isnan(scores[i]) || num_nans-- > 0) indices[count++] = i;
    }
    return count;
  }
  const float threshold = SearchKth(scores, n, k, summary);
  const int above = HWY_DYNAMIC_DISPATCH(CountAbove)(scores, n, threshold);
  return HWY_DYNAMIC_DISPATCH(WritePositions)(scores, n, threshold, k - above, indices);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
