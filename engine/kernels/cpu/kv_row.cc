#include "engine/kernels/kv_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/linear.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/kv_row.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/dot_tile-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Only here are halves rounded to nearest even by an instruction.
constexpr bool kRoundsHalves = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;

template <class T>
void WidenRows(const KvRows& rows, int head_dim, int num_rows, float* out) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const T* row = reinterpret_cast<const T*>(rows.data);
  for (int r = 0; r < num_rows; ++r, row += head_dim, out += head_dim) {
    const float scale = kHasScale<T> ? rows.scales[r * KvLayout::kScalesPerToken] : 1.0f;
    const FloatVec scales = hn::Set(d, scale);
    int i = 0;
    for (; i + lanes <= head_dim; i += lanes) {
      const FloatVec x = LoadFloats(d, row + i);
      hn::StoreU(kHasScale<T> ? hn::Mul(x, scales) : x, d, out + i);
    }
    for (; i < head_dim; ++i)
      out[i] = kHasScale<T> ? scale * LoadFloat(row + i) : LoadFloat(row + i);
  }
}

void WidenAnyRows(const KvRows& rows, const KvLayout& layout, int num_rows, float* out) {
  WithElementType(layout.dtype, [&](auto element) {
    WidenRows<decltype(element)>(rows, layout.head_dim, num_rows, out);
  });
}

// The largest |x[i]|; NaN when any is not finite.
float LargestMagnitude(const float* x, int n) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec max = hn::Zero(d), zeros = hn::Zero(d);  // 0 * x, NaN if not finite
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const FloatVec v = hn::LoadU(d, x + i);
    max = hn::Max(max, hn::Abs(v));
    zeros = hn::MulAdd(v, hn::Zero(d), zeros);
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, max));
  float zero = hn::GetLane(hn::SumOfLanes(d, zeros));
  for (; i < n; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    zero += 0.0f * x[i];
  }
  return std::isnan(zero) ? zero : largest;
}

// The scale.
float RoundToInt8(const float* x, int n, int8_t* codes) {
  const float max = LargestMagnitude(x, n);
  if (!(max >= kLeastInt8Max)) {
    std::memset(codes, 0, static_cast<size_t>(n));
    return std::isnan(max) ? max : 0.0f;
  }
  const FloatTag d;
  const hn::Rebind<int8_t, FloatTag> bytes;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const float inverse = 127.0f / max;
  const FloatVec to_code = hn::Set(d, inverse);
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), to_code));
    hn::StoreU(hn::DemoteTo(bytes, rounded), bytes, codes + i);
  }
  for (; i < n; ++i) codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return max / 127.0f;
}

void RoundToHalf(const float* x, int n, std::byte* out) {
  int i = 0;
  if constexpr (kRoundsHalves) {
    const FloatTag d;
    const hn::Rebind<hwy::float16_t, FloatTag> halves;
    const int lanes = static_cast<int>(hn::Lanes(d));
    auto* to = reinterpret_cast<hwy::float16_t*>(out);
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(hn::DemoteTo(halves, hn::LoadU(d, x + i)), halves, to + i);
    }
  }
  for (; i < n; ++i) StoreElement(out, DType::kF16, i, x[i]);
}

void StoreRow(const float* x, const KvLayout& layout, std::byte* row, float* scale) {
  const int n = layout.head_dim;
  switch (layout.dtype) {
    case DType::kI8:
      *scale = RoundToInt8(x, n, reinterpret_cast<int8_t*>(row));
      return;
    case DType::kBF16:
      return RoundToBf16(x, n, reinterpret_cast<BF16*>(row));
    case DType::kF16:
      return RoundToHalf(x, n, row);
    default:
      std::memcpy(row, x, static_cast<size_t>(n) * sizeof(float));
  }
}

void StoreRows(const float* key, const float* value, const KvLayout& layout,
               const KvRowPlace& place) {
  StoreRow(key, layout, place.key, place.scales);
  StoreRow(value, layout, place.value, place.scales == nullptr ? nullptr : place.scales + 1);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(WidenAnyRows);
HWY_EXPORT(StoreRows);

void LoadKvRows(const KvRows& rows, const KvLayout& layout, int num_rows, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenAnyRows)(rows, layout, num_rows, out);
}

void StoreKvRow(const float* key, const float* value, const KvLayout& layout,
                const KvRowPlace& place) {
  HWY_DYNAMIC_DISPATCH(StoreRows)(key, value, layout, place);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
