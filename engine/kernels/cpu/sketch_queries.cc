#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/cpu/sketch_tiles.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/sketch_queries.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;

HWY_INLINE hn::Vec<FloatTag> LoadBf16(const BF16* p) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

// The largest scale of each channel over the blocks.
void LargestScales(const SketchLayout& layout, const std::byte* const* records, int num_blocks,
                   float* largest) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int c = 0; c < layout.padded_dim(); c += lanes) {
    auto v = hn::Zero(d);
    for (int b = 0; b < num_blocks; ++b) {
      v = hn::Max(v,
                  LoadBf16(reinterpret_cast<const BF16*>(records[b] + layout.scales_offset()) + c));
    }
    hn::Store(v, d, largest + c);
  }
}

// max_c |query[c]| * largest[c] / 127, and 0 where that is no use.
float FactorOf(const float* query, const float* largest, int dim) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto v = hn::Zero(d);
  for (int c = 0; c < dim; c += lanes) {
    v = hn::Max(v, hn::Abs(hn::Mul(hn::Load(d, query + c), hn::Load(d, largest + c))));
  }
  const float factor = hn::GetLane(hn::MaxOfLanes(d, v)) / 127;
  return std::isfinite(1 / factor) && std::isfinite(factor) ? factor : 0.0f;
}

// One block and one head. With i = round(query * scale / factor) and L levels,
//   sum_c query (zero + scale code) = sum_c query (zero + scale L / 2) + query scale (code - L / 2)
//                                   ~ sum_c query centre - factor L / 2 sum_c i + factor sum_c i
//                                   code
// so that rounding does not shift a block's scores against other blocks'.
HWY_INLINE void RoundQuery(const float* HWY_RESTRICT query, const float* HWY_RESTRICT scaled,
                           const float* HWY_RESTRICT scales, const float* HWY_RESTRICT centres,
                           int dim, float shift, float lse, int8_t* HWY_RESTRICT codes,
                           float* HWY_RESTRICT base) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<int8_t, FloatTag> di8;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  auto code_sum = hn::Zero(di);
  for (int c = 0; c < dim; c += lanes) {
    const auto code = hn::NearestInt(hn::Mul(hn::Load(d, scaled + c), hn::Load(d, scales + c)));
    hn::StoreU(hn::DemoteTo(di8, code), di8, codes + c);
    code_sum = hn::Add(code_sum, code);
    sum = hn::MulAdd(hn::Load(d, query + c), hn::Load(d, centres + c), sum);
  }
  sum = hn::NegMulAdd(hn::ConvertTo(d, code_sum), hn::Set(d, shift), sum);
  *base = hn::GetLane(hn::SumOfLanes(d, sum)) - lse;
}

void RoundQueriesVectors(const SketchLayout& layout, const SketchHeads& heads,
                         const std::byte* const* records, int num_blocks, RoundedQueries* rounded) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int dim = layout.padded_dim();
  alignas(64) float scales[kSketchMaxDim], centres[kSketchMaxDim];
  alignas(64) float scaled[kSketchHeads][kSketchMaxDim];
  LargestScales(layout, records, num_blocks, scales);
  for (int h = 0; h < heads.num_heads; ++h) {
    rounded->factors[h] = FactorOf(heads.queries[h], scales, dim);
    const auto inverse = hn::Set(d, rounded->factors[h] > 0 ? 1 / rounded->factors[h] : 0.0f);
    for (int c = 0; c < dim; c += lanes) {
      hn::Store(hn::Mul(hn::Load(d, heads.queries[h] + c), inverse), d, scaled[h] + c);
    }
  }
  const float half = 0.5f * layout.levels();
  for (int b = 0; b < num_blocks; ++b) {
    const auto* block_scales = reinterpret_cast<const BF16*>(records[b] + layout.scales_offset());
    const auto* block_zeros = reinterpret_cast<const BF16*>(records[b] + layout.zeros_offset());
    for (int c = 0; c < dim; c += lanes) {
      const auto scale = LoadBf16(block_scales + c);
      hn::Store(scale, d, scales + c);
      hn::Store(hn::MulAdd(scale, hn::Set(d, half), LoadBf16(block_zeros + c)), d, centres + c);
    }
    for (int h = 0; h < heads.num_heads; ++h) {
      RoundQuery(heads.queries[h], scaled[h], scales, centres, dim, rounded->factors[h] * half,
                 heads.lse[h], rounded->codes[b][h], &rounded->bases[h][b]);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(RoundQueriesVectors);

void RoundQueries(const SketchLayout& layout, const SketchHeads& heads,
                  const std::byte* const* records, int num_blocks, RoundedQueries* rounded) {
  HWY_DYNAMIC_DISPATCH(RoundQueriesVectors)(layout, heads, records, num_blocks, rounded);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
