// Per-target building blocks of the vectorised kernels: included once per Highway target, hence no
// #pragma once.

#if defined(TOKENBUTLER_DOT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOKENBUTLER_DOT_TILE_INL_H_
#undef TOKENBUTLER_DOT_TILE_INL_H_
#else
#define TOKENBUTLER_DOT_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/prefetch.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

// Rows of x per tile, so that a tile's sums stay in registers (AVX-512 has 32, the others 16).
HWY_MAYBE_UNUSED constexpr int kTileRows = HWY_TARGET == HWY_AVX3 ? 4 : 2;
// Rows of w per tile: their sums end up in the four lanes of one 128-bit vector.
HWY_MAYBE_UNUSED constexpr int kTileOuts = 4;

// Calls fn with the number of rows of each tile that `num_rows` rows are cut into, as a constant:
// fn(integral_constant rows, first row).
template <class Fn>
HWY_INLINE void ForEachRowTile(int num_rows, const Fn& fn) {
  int row = 0;
  for (; row + kTileRows <= num_rows; row += kTileRows) {
    fn(std::integral_constant<int, kTileRows>(), row);
  }
  if constexpr (kTileRows == 4) {
    if (num_rows - row == 3) return fn(std::integral_constant<int, 3>(), row);
    if (num_rows - row == 2) return fn(std::integral_constant<int, 2>(), row);
  }
  if (row < num_rows) fn(std::integral_constant<int, 1>(), row);
}

// Half precision bits as stored; a type of its own so that loads can be overloaded.
struct F16 {
  uint16_t bits;
};

// A code of an int8 row, whose scale is elsewhere.
struct I8 {
  int8_t code;
};

// Whether rows of T have a scale each.
template <class T>
HWY_MAYBE_UNUSED constexpr bool kHasScale = std::is_same_v<T, I8>;

// Calls fn(a value of the element type of rows of `dtype`).
template <class Fn>
void WithElementType(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kBF16:
      return fn(BF16());
    case DType::kF16:
      return fn(F16());
    case DType::kI8:
      return fn(I8());
    default:
      return fn(float());
  }
}

// Lanes(d) elements from p, widened to float32 (exact); codes without their scale.
HWY_INLINE FloatVec LoadFloats(FloatTag d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE FloatVec LoadFloats(FloatTag d, const BF16* p) {
  const hn::Rebind<hwy::bfloat16_t, FloatTag> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_INLINE FloatVec LoadFloats(FloatTag d, const F16* p) {
  const hn::Rebind<hwy::float16_t, FloatTag> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(p)));
}
#else
// Highway's own emulation takes infinity and NaN for numbers.
HWY_INLINE FloatVec LoadFloats(FloatTag d, const F16* p) {
  HWY_ALIGN float floats[hn::MaxLanes(FloatTag())];
  for (size_t i = 0; i < hn::Lanes(d); ++i) floats[i] = HalfToFloat(p[i].bits);
  return hn::Load(d, floats);
}
#endif
HWY_INLINE FloatVec LoadFloats(FloatTag d, const I8* p) {
  const hn::Rebind<int8_t, FloatTag> narrow;
  const hn::RebindToSigned<FloatTag> words;
  return hn::ConvertTo(d,
                       hn::PromoteTo(words, hn::LoadU(narrow, reinterpret_cast<const int8_t*>(p))));
}

HWY_INLINE float LoadFloat(const float* p) { return *p; }
HWY_INLINE float LoadFloat(const BF16* p) { return ToFloat(*p); }
HWY_INLINE float LoadFloat(const F16* p) { return HalfToFloat(p->bits); }
HWY_INLINE float LoadFloat(const I8* p) { return p->code; }

#if HWY_TARGET == HWY_SCALAR

// out[i] = vi.
HWY_INLINE void StoreLaneSums(FloatTag, FloatVec v0, FloatVec v1, FloatVec v2, FloatVec v3,
                              float* out) {
  out[0] = hn::GetLane(v0);
  out[1] = hn::GetLane(v1);
  out[2] = hn::GetLane(v2);
  out[3] = hn::GetLane(v3);
}

#else

// Adds the 128-bit blocks of v.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Full128<float>> SumBlocks(D d, V v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    (void)d;
    return v;
  } else {
    const hn::Half<D> half;
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// out[i] = sum of the lanes of vi: half the shuffles of four separate sums.
HWY_INLINE void StoreLaneSums(FloatTag d, FloatVec v0, FloatVec v1, FloatVec v2, FloatVec v3,
                              float* out) {
  const FloatVec even = hn::Add(hn::InterleaveLower(d, v0, v2), hn::InterleaveUpper(d, v0, v2));
  const FloatVec odd = hn::Add(hn::InterleaveLower(d, v1, v3), hn::InterleaveUpper(d, v1, v3));
  const FloatVec sums =
      hn::Add(hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd));
  hn::StoreU(SumBlocks(d, sums), hn::Full128<float>(), out);
}

#endif

// dots[r][o] = x row r . w row o over n elements, in float32. Each dot is one vector sum over
// elements in order, its lanes' sum, then the elements after the last whole vector; the same
// order for every kRows, which is what makes rows independent of their neighbours.
// Prefetches w `prefetch_bytes` ahead when kPrefetch.
template <int kRows, bool kPrefetch, class X, class W>
HWY_INLINE void DotTile(const X* const (&x)[kRows], const W* const (&w)[kTileOuts], size_t n,
                        size_t prefetch_bytes, float (&dots)[kRows][kTileOuts]) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVec acc[kRows][kTileOuts];
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kTileOuts; ++o) acc[r][o] = hn::Zero(d);
  }
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    FloatVec weights[kTileOuts];
    for (int o = 0; o < kTileOuts; ++o) {
      weights[o] = LoadFloats(d, w[o] + i);
      if constexpr (kPrefetch) {
        PrefetchToL2(reinterpret_cast<const char*>(w[o] + i) + prefetch_bytes);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const FloatVec row = LoadFloats(d, x[r] + i);
      for (int o = 0; o < kTileOuts; ++o) acc[r][o] = hn::MulAdd(row, weights[o], acc[r][o]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    StoreLaneSums(d, acc[r][0], acc[r][1], acc[r][2], acc[r][3], dots[r]);
  }
  for (; i < n; ++i) {
    for (int r = 0; r < kRows; ++r) {
      for (int o = 0; o < kTileOuts; ++o) dots[r][o] += LoadFloat(x[r] + i) * LoadFloat(w[o] + i);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#endif  // TOKENBUTLER_DOT_TILE_INL_H_
