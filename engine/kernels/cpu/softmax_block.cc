#include "engine/kernels/softmax_block.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/softmax_block.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/exp_of_negative-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Finite, far below any logit.
constexpr float kMasked = -1e30f;

// Stores `weight`, in [0, 1] or NaN, as T; returns it as it was stored.
HWY_INLINE FloatVec StoreWeights(FloatVec weight, float* to) {
  hn::StoreU(weight, FloatTag(), to);
  return weight;
}
HWY_INLINE FloatVec StoreWeights(FloatVec weight, BF16* to) {
  const hn::RebindToUnsigned<FloatTag> words;
  const hn::Rebind<uint16_t, FloatTag> halves;
  // Of NaNs the least quiet one, which rounding does not carry beyond 32 bits.
  const auto bits = hn::Min(hn::BitCast(words, weight), hn::Set(words, 0x7fc00000));
  const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto sum = hn::Add(bits, hn::Add(is_odd, hn::Set(words, 0x7fff)));
  const auto upper = hn::ShiftRight<16>(sum);
  hn::StoreU(hn::TruncateTo(halves, upper), halves, reinterpret_cast<uint16_t*>(to));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(upper));
}

// Largest of x[0, n); n is a multiple of the lanes.
HWY_INLINE float LargestOf(const float* x, int n) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec max0 = hn::LoadU(d, x), max1 = max0;
  int i = lanes;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    max0 = hn::Max(max0, hn::LoadU(d, x + i));
    max1 = hn::Max(max1, hn::LoadU(d, x + i + lanes));
  }
  if (i < n) max0 = hn::Max(max0, hn::LoadU(d, x + i));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
}

HWY_INLINE void MultiplyBy(float factor, int n, float* x) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const FloatVec factors = hn::Set(d, factor);
  int i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factors), d, x + i);
  for (; i < n; ++i) x[i] *= factor;
}

template <class T>
HWY_INLINE void SoftmaxRow(const SoftmaxBlockParams& p, int r) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float* logits = p.logits + static_cast<size_t>(r) * p.num_keys;
  T* weights = static_cast<T*>(p.weights) + static_cast<size_t>(r) * p.num_keys;
  const VisibleKeys visible = p.visible[r];
  if (visible.begin >= visible.end) {
    std::fill_n(weights, p.num_keys, T{});
    return;
  }
  // Whole vectors, those at the ends with masked logits.
  const int begin = visible.begin / lanes * lanes;
  const int end = (visible.end + lanes - 1) / lanes * lanes;
  std::fill(logits + begin, logits + visible.begin, kMasked);
  std::fill(logits + visible.end, logits + end, kMasked);

  OnlineSoftmaxState& state = p.states[r];
  const float max = std::max(state.max, p.softmax_scale * LargestOf(logits + begin, end - begin));
  if (state.sum != 0.0f && max != state.max) {
    const float rescale = std::exp(state.max - max);
    state.sum *= rescale;
    MultiplyBy(rescale, p.head_dim, state.acc);
  }
  state.max = max;

  const FloatVec scale = hn::Set(d, p.softmax_scale), maxes = hn::Set(d, max);
  FloatVec sum0 = hn::Zero(d), sum1 = sum0;
  const auto weights_of = [&](int k) HWY_ATTR {
    return ExpOfNegative(hn::MulSub(hn::LoadU(d, logits + k), scale, maxes));
  };
  int k = begin;
  for (; k + 2 * lanes <= end; k += 2 * lanes) {
    const FloatVec weight0 = weights_of(k), weight1 = weights_of(k + lanes);
    sum0 = hn::Add(sum0, StoreWeights(weight0, weights + k));
    sum1 = hn::Add(sum1, StoreWeights(weight1, weights + k + lanes));
  }
  if (k < end) sum0 = hn::Add(sum0, StoreWeights(weights_of(k), weights + k));
  state.sum += hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  std::fill_n(weights, visible.begin, T{});
  std::fill(weights + visible.end, weights + p.num_keys, T{});
}

void SoftmaxRows(const SoftmaxBlockParams& p) {
  for (int r = 0; r < p.num_rows; ++r) {
    if (p.weights_dtype == DType::kBF16) {
      SoftmaxRow<BF16>(p, r);
    } else {
      SoftmaxRow<float>(p, r);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(SoftmaxRows);

void SoftmaxBlock(const SoftmaxBlockParams& p) { HWY_DYNAMIC_DISPATCH(SoftmaxRows)(p); }

}  // namespace tokenbutler
#endif  // HWY_ONCE
