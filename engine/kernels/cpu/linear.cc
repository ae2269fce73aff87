#include "engine/kernels/linear.h"

#include <algorithm>
#include <cstddef>

#include "engine/kernels/cpu/linear_bf16.h"
#include "engine/kernels/kernel_target.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/linear.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/dot_tile-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// How far ahead of the loads the weights are fetched: the next tile while rows are short, so that
// the last lines of a tile do not fetch what was read already; else a fixed distance in the row.
size_t PrefetchBytes(size_t row_bytes) { return std::min<size_t>(kTileOuts * row_bytes, 4096); }

// y of x rows [row, row + kRows) and weight rows [out, min(out + kTileOuts, out_end)).
template <int kRows, class X, class W>
HWY_INLINE void LinearTile(const LinearParams& p, int row, int out, int out_end) {
  const size_t n = p.in_features;
  const X* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = static_cast<const X*>(p.x) + (row + r) * n;
  const W* w[kTileOuts];
  for (int o = 0; o < kTileOuts; ++o) {
    // Past the end, the last row again: its sums are not stored.
    w[o] = static_cast<const W*>(p.weight) + std::min(out + o, out_end - 1) * n;
  }
  float dots[kRows][kTileOuts];
  DotTile<kRows, true>(x, w, n, PrefetchBytes(n * sizeof(W)), dots);
  for (int r = 0; r < kRows; ++r) {
    float* y = p.y + static_cast<size_t>(row + r) * p.out_features;
    for (int o = 0; o < std::min(kTileOuts, out_end - out); ++o) {
      y[out + o] = dots[r][o] + (p.bias == nullptr ? 0.0f : p.bias[out + o]);
    }
  }
}

template <class X, class W>
void LinearRangeOf(const LinearParams& p, int out_begin, int out_end) {
  // Up to 16 rows share one pass over the weights; more would push them out of the L2 cache.
  constexpr int kPassRows = 16;
  for (int first = 0; first < p.num_rows; first += kPassRows) {
    const int last = std::min(first + kPassRows, p.num_rows);
    for (int out = out_begin; out < out_end; out += kTileOuts) {
      ForEachRowTile(last - first, [&](auto rows, int row) HWY_ATTR {
        LinearTile<rows.value, X, W>(p, first + row, out, out_end);
      });
    }
  }
}

void LinearRange(const LinearParams& p, int out_begin, int out_end) {
  if (p.weight_dtype == DType::kF32) {
    LinearRangeOf<float, float>(p, out_begin, out_end);
  } else if (p.x_dtype == DType::kF32) {
    LinearRangeOf<float, BF16>(p, out_begin, out_end);
  } else {
    LinearRangeOf<BF16, BF16>(p, out_begin, out_end);
  }
}

void RoundToBf16Vectors(const float* x, int num_elements, BF16* out) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= num_elements; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(du, v);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto half = hn::Add(hn::Set(du, 0x7fff), hn::And(upper, hn::Set(du, 1)));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, half));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    const auto chosen = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(du, 0x40)), rounded);
    hn::StoreU(hn::TruncateTo(du16, chosen), du16, reinterpret_cast<uint16_t*>(out + i));
  }
  for (; i < num_elements; ++i) out[i] = ToBF16(x[i]);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(LinearRange);
HWY_EXPORT(RoundToBf16Vectors);

namespace {

// Weights worth a task of their own: below this, waking a thread costs more than it saves.
constexpr size_t kMinTaskBytes = size_t{32} << 10;
// Tasks per thread: enough that a thread that starts late leaves its share to the others, few
// enough that a task reads one long run of memory.
constexpr int kTasksPerThread = 4;
// Outputs per task come in multiples of this: one cache line of y.
constexpr int kOutAlign = 16;

}  // namespace

void Linear(const LinearParams& p, ComputePool& pool) {
  if (p.num_rows == 0 || p.out_features == 0) return;
  const bool bf16_dot = p.x_dtype == DType::kBF16 && KernelTarget() == CpuTarget::kAvx512Bf16;
  const size_t bytes =
      static_cast<size_t>(p.out_features) * p.in_features * DTypeBytes(p.weight_dtype);
  const int max_tasks = pool.num_threads() == 1 ? 1 : pool.num_threads() * kTasksPerThread;
  const int num_tasks = static_cast<int>(std::clamp<size_t>(bytes / kMinTaskBytes, 1, max_tasks));
  const int share = (p.out_features + num_tasks - 1) / num_tasks;
  const int per_task = (share + kOutAlign - 1) / kOutAlign * kOutAlign;
  pool.ParallelFor((p.out_features + per_task - 1) / per_task, [&](int task) {
    const int begin = task * per_task;
    const int end = std::min(begin + per_task, p.out_features);
    if (bf16_dot) {
      LinearRangeBf16Dot(p, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(LinearRange)(p, begin, end);
    }
  });
}

void RoundToBf16(const float* x, int num_elements, BF16* out) {
  HWY_DYNAMIC_DISPATCH(RoundToBf16Vectors)(x, num_elements, out);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
