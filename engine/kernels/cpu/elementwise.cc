// The vectorised versions of the small per-row kernels.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/kv_row.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/rope_append.h"
#include "engine/kernels/swiglu.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;

// out = x / rms(x) * weight of one row.
void NormRow(const float* x, const float* weight, float eps, int n, float* out) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  // Two sums, so that an addition need not wait for the one before it.
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto v0 = hn::LoadU(d, x + i), v1 = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(v0, v0, sum0);
    sum1 = hn::MulAdd(v1, v1, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += x[i] * x[i];

  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  const auto scales = hn::Set(d, scale);
  i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), scales);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void RmsNormRows(const RmsNormParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const size_t at = static_cast<size_t>(row) * p.hidden_size;
    NormRow(p.x + at, p.weight, p.eps, p.hidden_size, p.out + at);
  }
}

void AddRmsNormRows(const AddRmsNormParams& p) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int row = 0; row < p.num_rows; ++row) {
    const size_t at = static_cast<size_t>(row) * p.hidden_size;
    float* residual = p.residual + at;
    const float* x = p.x + at;
    int i = 0;
    for (; i + lanes <= p.hidden_size; i += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, residual + i), hn::LoadU(d, x + i)), d, residual + i);
    }
    for (; i < p.hidden_size; ++i) residual[i] += x[i];
    NormRow(residual, p.weight, p.eps, p.hidden_size, p.out + at);
  }
}

void SwiGluRows(const SwiGluParams& p) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0f);
  // exp(88) is still finite; silu is 0 to float32's precision long before.
  const auto limit = hn::Set(d, 88.0f);
  for (int row = 0; row < p.num_rows; ++row) {
    const float* gate = p.gate_up + static_cast<size_t>(row) * 2 * p.intermediate_size;
    const float* up = gate + p.intermediate_size;
    float* out = p.out + static_cast<size_t>(row) * p.intermediate_size;
    int i = 0;
    for (; i + lanes <= p.intermediate_size; i += lanes) {
      const auto z = hn::LoadU(d, gate + i);
      const auto exp = hn::Exp(d, hn::Min(hn::Neg(z), limit));
      const auto silu = hn::Div(z, hn::Add(one, exp));
      hn::StoreU(hn::Mul(silu, hn::LoadU(d, up + i)), d, out + i);
    }
    for (; i < p.intermediate_size; ++i) {
      out[i] = gate[i] / (1.0f + std::exp(std::min(-gate[i], 88.0f))) * up[i];
    }
  }
}

void RotateHead(const float* cos, const float* sin, int head_dim, float* x) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int half = head_dim / 2;
  int i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void RopeAppendRows(const RopeAppendParams& p) {
  const KvLayout& kv = p.layout;
  const size_t head_dim = kv.head_dim;
  const size_t row_size = (p.num_heads + size_t{2} * kv.num_kv_heads) * head_dim;
  for (int r = 0; r < p.num_rows; ++r) {
    const RopeAppendParams::Row& row = p.rows[r];
    float* q = p.qkv + r * row_size;
    const float* k = q + p.num_heads * head_dim;
    const float* v = k + kv.num_kv_heads * head_dim;
    for (int h = 0; h < p.num_heads + kv.num_kv_heads; ++h) {  // k follows q
      RotateHead(row.cos, row.sin, kv.head_dim, q + h * head_dim);
    }
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      StoreKvRow(k + h * head_dim, v + h * head_dim, kv,
                 KvRowPlaceOf(kv, row.block, p.layer, h, row.row_in_block));
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(AddRmsNormRows);
HWY_EXPORT(SwiGluRows);
HWY_EXPORT(RopeAppendRows);

void RmsNorm(const RmsNormParams& p) { HWY_DYNAMIC_DISPATCH(RmsNormRows)(p); }
void AddRmsNorm(const AddRmsNormParams& p) { HWY_DYNAMIC_DISPATCH(AddRmsNormRows)(p); }
void SwiGlu(const SwiGluParams& p) { HWY_DYNAMIC_DISPATCH(SwiGluRows)(p); }
void RopeAppend(const RopeAppendParams& p) { HWY_DYNAMIC_DISPATCH(RopeAppendRows)(p); }

}  // namespace tokenbutler
#endif  // HWY_ONCE
