// Per-target building block of the softmax kernels: included once per Highway target, hence no
// #pragma once.

#if defined(TOKENBUTLER_EXP_OF_NEGATIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKENBUTLER_EXP_OF_NEGATIVE_INL_H_
#undef TOKENBUTLER_EXP_OF_NEGATIVE_INL_H_
#else
#define TOKENBUTLER_EXP_OF_NEGATIVE_INL_H_
#endif

#include "engine/kernels/cpu/dot_tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// exp(x) for x <= 0 with a relative error below 3e-7; exp(-87), the last one well above the
// subnormals, for anything lower; NaN of NaN.
// FastExp of fast_exp.h, one term shorter: half the instructions of Highway's Exp.
HWY_INLINE FloatVec ExpOfNegative(FloatVec x) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> words;
  const FloatVec lowest = hn::Set(d, -87.0f);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const FloatVec clamped = hn::Max(lowest, x);  // of NaN and a number the second operand
#else
  const FloatVec clamped = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
#endif
  // Adding 1.5 * 2^23 + 127 rounds to an integer n and leaves n + 127 in the low mantissa bits: the
  // exponent of 2^n, as it is stored.
  const FloatVec round = hn::Set(d, 12583039.0f);
  const FloatVec shifted = hn::MulAdd(clamped, hn::Set(d, 1.44269504f), round);
  const FloatVec n = hn::Sub(shifted, round);
  const FloatVec high = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);  // ln 2 in two parts
  const FloatVec r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), high);
  FloatVec sum = hn::MulAdd(r, hn::Set(d, 1.0f / 720), hn::Set(d, 1.0f / 120));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f / 24));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f / 6));
  sum = hn::MulAdd(sum, r, hn::Set(d, 0.5f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::BitCast(words, shifted));
  return hn::Mul(sum, hn::BitCast(d, power));  // exact; an addition of bits would lose NaN
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // per target
