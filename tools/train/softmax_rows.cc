#include "tools/train/softmax_rows.h"

#include <algorithm>
#include <cmath>

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/train/softmax_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;

// Sums are taken in parts of so many vectors, in float32, and added up in float64.
constexpr int kVectorsPerPart = 64;

// Calls fn(i, mask of the lanes below `end`) for the vectors of [begin, end), and at_part() now and
// then.
template <class Fn, class PartFn>
HWY_INLINE void ForVectors(int begin, int end, const Fn& fn, const PartFn& at_part) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int in_part = 0;
  for (int i = begin; i < end; i += lanes) {
    fn(i, hn::FirstN(d, static_cast<size_t>(std::min(lanes, end - i))));
    if (++in_part == kVectorsPerPart) {
      at_part();
      in_part = 0;
    }
  }
  at_part();
}
template <class Fn>
HWY_INLINE void ForVectors(int begin, int end, const Fn& fn) {
  ForVectors(begin, end, fn, []() HWY_ATTR {});
}

// exp of what is at most 0; 0 below -87, NaN for NaN.
template <class V>
HWY_INLINE V ExpOf(FloatTag d, V x) {
  const auto lowest = hn::Set(d, -87.0f);
  const auto exp = hn::IfThenElseZero(hn::Ge(x, lowest), hn::Exp(d, hn::Max(x, lowest)));
  return hn::IfThenElse(hn::IsNaN(x), x, exp);  // Exp makes 0 of it
}

float MaxOf(const float* x, int begin, int end) {
  const FloatTag d;
  auto max = hn::Set(d, -INFINITY);
  ForVectors(begin, end, [&](int i, auto mask) HWY_ATTR {
    max = hn::IfThenElse(mask, hn::Max(max, hn::MaskedLoad(mask, d, x + i)), max);
  });
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

TeacherRow TeacherImpl(int begin, int end, int limit, int size, float* x) {
  const FloatTag d;
  const float max = MaxOf(x, 0, limit);
  double sum = 0, weighted = 0;  // of e = exp(x - max); of e (x - max), within [begin, end)
  double chosen = 0;             // sum of e within [begin, end)
  const auto add_range = [&](int from, int to, bool is_chosen) HWY_ATTR {
    auto part = hn::Zero(d), weighted_part = hn::Zero(d);
    ForVectors(
        from, to,
        [&](int i, auto mask) HWY_ATTR {
          const auto below = hn::Sub(hn::MaskedLoad(mask, d, x + i), hn::Set(d, max));
          const auto e = hn::IfThenElseZero(mask, ExpOf(d, below));
          part = hn::Add(part, e);
          if (!is_chosen) return;
          // 0 rather than 0 * -Inf.
          weighted_part =
              hn::Add(weighted_part, hn::IfThenElseZero(hn::Gt(e, hn::Zero(d)), hn::Mul(e, below)));
          hn::BlendedStore(e, mask, d, x + i);
        },
        [&]() HWY_ATTR {
          const double in_part = hn::GetLane(hn::SumOfLanes(d, part));
          sum += in_part;
          if (is_chosen) chosen += in_part;
          weighted += hn::GetLane(hn::SumOfLanes(d, weighted_part));
          part = weighted_part = hn::Zero(d);
        });
  };
  begin = std::min(begin, end);
  add_range(0, begin, false);
  add_range(begin, end, true);
  add_range(end, limit, false);

  const auto share = hn::Set(d, static_cast<float>(1 / sum));
  ForVectors(begin, end, [&](int i, auto mask) HWY_ATTR {
    hn::BlendedStore(hn::Mul(hn::MaskedLoad(mask, d, x + i), share), mask, d, x + i);
  });
  std::fill(x, x + begin, 0.0f);
  std::fill(x + end, x + size, 0.0f);
  if (!(chosen > 0)) return {.mass = chosen / sum};  // NaN stays NaN
  // p log(p / m) = (e / sum) ((x - max) - log(chosen)).
  return {.mass = chosen / sum, .neg_entropy = (weighted - chosen * std::log(chosen)) / sum};
}

double StudentImpl(const float* p, double mass, int begin, int end, int size, float scale,
                   float* y) {
  const FloatTag d;
  begin = std::min(begin, end);
  const float max = MaxOf(y, begin, end);
  double sum = 0, matched = 0;  // of e = exp(y - max); of p (y - max)
  auto part = hn::Zero(d), matched_part = hn::Zero(d);
  ForVectors(
      begin, end,
      [&](int i, auto mask) HWY_ATTR {
        const auto below = hn::Sub(hn::MaskedLoad(mask, d, y + i), hn::Set(d, max));
        const auto e = hn::IfThenElseZero(mask, ExpOf(d, below));
        part = hn::Add(part, e);
        matched_part = hn::MulAdd(hn::MaskedLoad(mask, d, p + i), hn::IfThenElseZero(mask, below),
                                  matched_part);
        hn::BlendedStore(e, mask, d, y + i);
      },
      [&]() HWY_ATTR {
        sum += hn::GetLane(hn::SumOfLanes(d, part));
        matched += hn::GetLane(hn::SumOfLanes(d, matched_part));
        part = matched_part = hn::Zero(d);
      });
  const double factor = begin < end ? scale * mass / sum : 0;
  const auto share = hn::Set(d, static_cast<float>(factor)), of_p = hn::Set(d, scale);
  ForVectors(begin, end, [&](int i, auto mask) HWY_ATTR {
    const auto softmax = hn::Mul(hn::MaskedLoad(mask, d, y + i), share);
    hn::BlendedStore(hn::NegMulAdd(hn::MaskedLoad(mask, d, p + i), of_p, softmax), mask, d, y + i);
  });
  std::fill(y, y + begin, 0.0f);
  std::fill(y + end, y + size, 0.0f);
  return begin < end ? mass * std::log(sum) - matched : 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(TeacherImpl);
HWY_EXPORT(StudentImpl);

TeacherRow SoftmaxOfTeacher(int begin, int end, int limit, int size, float* x) {
  return HWY_DYNAMIC_DISPATCH(TeacherImpl)(begin, end, limit, size, x);
}

double StudentLoss(const float* p, double mass, int begin, int end, int size, float scale,
                   float* y) {
  return HWY_DYNAMIC_DISPATCH(StudentImpl)(p, mass, begin, end, size, scale, y);
}

}  // namespace tokenbutler
#endif
