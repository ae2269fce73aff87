#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/kernels/cpu/sketch_codes.h"
#include "engine/kernels/key_sketch.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/sketch_keys.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// Sixteen lanes at most: head_dim is a multiple of that.
using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;

constexpr int kMaxDim = 256;

HWY_INLINE hn::Vec<FloatTag> LoadKeys(const float* p) { return hn::LoadU(FloatTag(), p); }

HWY_INLINE hn::Vec<FloatTag> LoadKeys(const BF16* p) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

HWY_INLINE hn::Vec<FloatTag> LoadKeys(const hwy::float16_t* p) {
  const FloatTag d;
  const hn::Rebind<hwy::float16_t, FloatTag> df16;
  return hn::PromoteTo(d, hn::LoadU(df16, p));
}

HWY_INLINE hn::Vec<FloatTag> LoadKeys(const int8_t* p) {
  const FloatTag d;
  const hn::Rebind<int8_t, FloatTag> bytes;
  return hn::ConvertTo(d, hn::PromoteTo(IntTag(), hn::LoadU(bytes, p)));
}

// The channels [c, c + lanes) of one token.
template <class T>
HWY_INLINE hn::Vec<FloatTag> TokenKeys(const SketchKeysParams& p, int token, int c) {
  const auto* row = reinterpret_cast<const T*>(static_cast<const std::byte*>(p.keys) +
                                               token * p.key_stride_bytes);
  const auto keys = LoadKeys(row + c);
  if constexpr (std::is_same_v<T, int8_t>) {
    return hn::Mul(keys, hn::Set(FloatTag(), p.key_scales[token * KvLayout::kScalesPerToken]));
  }
  return keys;
}

// What channels are rounded with.
struct ChannelLevels {
  alignas(64) float zeros[kMaxDim];
  alignas(64) float to_code[kMaxDim];  // 1 / scale, or 0
};

// As FitLevels of key_sketch_plain.cc, for the channels [c, c + lanes).
template <class T>
HWY_INLINE void FitLevels(const SketchKeysParams& p, int c, hn::Vec<FloatTag>* low,
                          hn::Vec<FloatTag>* high) {
  const FloatTag d;
  const auto zero = hn::Zero(d), infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const auto num_tokens = hn::Set(d, static_cast<float>(p.layout.block_size));
  const auto num_steps = hn::Set(d, static_cast<float>(p.layout.levels()));
  for (int fit = 0; fit < kSketchFits; ++fit) {
    const auto step = hn::Div(hn::Sub(*high, *low), num_steps);
    const auto inverse = hn::Div(hn::Set(d, 1.0f), step);
    const auto is_finite = hn::And(hn::Gt(step, zero), hn::Lt(inverse, infinity));
    const auto to_code = hn::IfThenElseZero(is_finite, inverse);
    auto codes = zero, squares = zero, above = zero, products = zero;
    for (int t = 0; t < p.layout.block_size; ++t) {
      const auto x = hn::Sub(TokenKeys<T>(p, t, c), *low);
      const auto code = hn::Round(hn::Min(hn::Max(hn::Mul(x, to_code), zero), num_steps));
      codes = hn::Add(codes, code);
      squares = hn::Add(squares, hn::Mul(code, code));
      above = hn::Add(above, x);
      products = hn::Add(products, hn::Mul(code, x));
    }
    const auto spread = hn::Sub(hn::Mul(num_tokens, squares), hn::Mul(codes, codes));
    const auto scale =
        hn::Div(hn::Sub(hn::Mul(num_tokens, products), hn::Mul(codes, above)), spread);
    const auto fitted = hn::Add(*low, hn::Div(hn::Sub(above, hn::Mul(scale, codes)), num_tokens));
    const auto has_spread = hn::Gt(spread, zero);
    *high = hn::IfThenElse(has_spread, hn::Add(fitted, hn::Mul(scale, num_steps)), *high);
    *low = hn::IfThenElse(has_spread, fitted, *low);
  }
}

// The lowest and the highest level of the channels [c, c + lanes).
template <class T>
HWY_INLINE void FindLevels(const SketchKeysParams& p, int c, float* lows, float* highs) {
  const FloatTag d;
  auto low = hn::Set(d, std::numeric_limits<float>::infinity());
  auto high = hn::Neg(low), sum = hn::Zero(d);
  for (int t = 0; t < p.layout.block_size; ++t) {
    const auto keys = TokenKeys<T>(p, t, c);
    low = hn::Min(low, keys);
    high = hn::Max(high, keys);
    sum = hn::Add(sum, keys);
  }
  if (p.layout.bits == 1) {
    const auto size = hn::Set(d, static_cast<float>(p.layout.block_size));
    const auto mean = hn::Div(sum, size);
    auto deviations = hn::Zero(d);
    for (int t = 0; t < p.layout.block_size; ++t) {
      deviations = hn::Add(deviations, hn::Abs(hn::Sub(TokenKeys<T>(p, t, c), mean)));
    }
    low = hn::Sub(mean, hn::Div(deviations, size));
    high = hn::Add(mean, hn::Div(deviations, size));
  }
  if (p.layout.bits == 2) FitLevels<T>(p, c, &low, &high);
  hn::StoreU(low, d, lows);
  hn::StoreU(high, d, highs);
}

template <class T>
void ChooseLevels(const SketchKeysParams& p, ChannelLevels* levels) {
  const int lanes = static_cast<int>(hn::Lanes(FloatTag()));
  auto* scales = reinterpret_cast<BF16*>(p.record + p.layout.scales_offset());
  auto* zeros = reinterpret_cast<BF16*>(p.record + p.layout.zeros_offset());
  float lows[16], highs[16];
  for (int c = 0; c < p.layout.head_dim; c += lanes) {
    FindLevels<T>(p, c, lows, highs);
    for (int i = 0; i < lanes; ++i) {
      float scale = (highs[i] - lows[i]) / p.layout.levels(), low = lows[i];
      if (!std::isfinite(scale) || !std::isfinite(low)) scale = low = 0;
      scales[c + i] = ToBF16(scale);
      zeros[c + i] = ToBF16(low);
      const float rounded = ToFloat(scales[c + i]);
      const float inverse = rounded > 0 ? 1 / rounded : 0.0f;
      levels->zeros[c + i] = ToFloat(zeros[c + i]);
      levels->to_code[c + i] = std::isfinite(inverse) ? inverse : 0.0f;
    }
  }
}

HWY_INLINE void StoreCodes(hn::Vec<FloatTag> x, int max_code, uint8_t* out) {
  const IntTag di;
  const hn::Rebind<uint8_t, FloatTag> du8;
  // Limited as integers: so NaN and infinity become codes too.
  const auto code = hn::Min(hn::Max(hn::NearestInt(x), hn::Zero(di)), hn::Set(di, max_code));
  hn::StoreU(hn::DemoteTo(du8, code), du8, out);
}

// The codes of a sub-block, one per byte.
struct SubBlockCodes {
  uint8_t tokens[16][kMaxDim];
};

template <class T>
void RoundSubBlock(const SketchKeysParams& p, const ChannelLevels& levels, int sub_block,
                   SubBlockCodes* codes) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto highest = hn::Set(d, 2.0f * p.layout.levels());
  for (int c = 0; c < p.layout.head_dim; c += lanes) {
    const auto zero = hn::Load(d, levels.zeros + c), to_code = hn::Load(d, levels.to_code + c);
    for (int t = 0; t < 16; ++t) {
      const auto x = hn::Mul(hn::Sub(TokenKeys<T>(p, sub_block * 16 + t, c), zero), to_code);
      // Far outside, NearestInt() would overflow.
      StoreCodes(hn::Min(x, highest), p.layout.levels(), codes->tokens[t] + c);
    }
  }
}

// The codes of one token, 16 channels at a time: two words of four codes in each of two registers.
template <int kBits>
HWY_INLINE void PackToken(const SketchLayout& layout, const uint8_t* codes, std::byte* out) {
  const auto merge = [](uint64_t x) {
    return static_cast<uint32_t>(x) | static_cast<uint32_t>(x >> 32) << kBits;
  };
  uint32_t line = 0;
  for (int c = 0; c < layout.padded_dim(); c += 16) {
    uint64_t low, high;
    std::memcpy(&low, codes + c, 8);
    std::memcpy(&high, codes + c + 8, 8);
    if (kBits == 4) {
      const uint32_t packed[2] = {merge(low), merge(high)};
      std::memcpy(out + c / 8 * 64, &packed[0], 4);
      std::memcpy(out + (c / 8 + 1) * 64, &packed[1], 4);
      continue;
    }
    const uint32_t packed = merge(low | high << (2 * kBits));
    if (kBits == 1) {  // channels 16 ... 31 of a line are the upper four bits of its bytes
      line = c % 32 == 0 ? packed : line | packed << 4;
    } else {
      line = packed;
    }
    std::memcpy(out + c * kBits / 32 * 64, &line, 4);
  }
}

template <int kBits>
void PackTokens(const SketchLayout& layout, const SubBlockCodes& codes, std::byte* out) {
  for (int t = 0; t < 16; ++t) PackToken<kBits>(layout, codes.tokens[t], out + t * 4);
}

template <class T>
void SketchKeysOf(const SketchKeysParams& p) {
  const SketchLayout& layout = p.layout;
  std::memset(p.record, 0, layout.codes_offset());
  ChannelLevels levels;
  ChooseLevels<T>(p, &levels);
  SubBlockCodes codes;
  std::memset(&codes, 0, sizeof(codes));  // beyond head_dim
  for (int s = 0; s < layout.sub_blocks(); ++s) {
    RoundSubBlock<T>(p, levels, s, &codes);
    std::byte* out = p.record + layout.codes_offset() + s * layout.sub_block_bytes();
    if (layout.bits == 1) PackTokens<1>(layout, codes, out);
    if (layout.bits == 2) PackTokens<2>(layout, codes, out);
    if (layout.bits == 4) PackTokens<4>(layout, codes, out);
  }
}

void SketchKeysVectors(const SketchKeysParams& p) {
  if (p.dtype == DType::kBF16) return SketchKeysOf<BF16>(p);
  if (p.dtype == DType::kF16) return SketchKeysOf<hwy::float16_t>(p);
  if (p.dtype == DType::kI8) return SketchKeysOf<int8_t>(p);
  SketchKeysOf<float>(p);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(SketchKeysVectors);

void SketchKeys(const SketchKeysParams& p) { HWY_DYNAMIC_DISPATCH(SketchKeysVectors)(p); }

}  // namespace tokenbutler
#endif  // HWY_ONCE
