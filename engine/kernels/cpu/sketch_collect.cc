#include <algorithm>
#include <bit>
#include <cstdint>

#include "engine/kernels/cpu/sketch_pass.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/sketch_collect.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, SketchLayout::kSubBlockTokens>;
using IntTag = hn::RebindToSigned<FloatTag>;

using MaskTag = hn::CappedTag<uint16_t, 32>;

// Bit i: something of tile `first` + i passed; i < 64.
HWY_INLINE uint64_t TilesThatPassed(const SketchPass::Scores& batch, int first) {
  const MaskTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int count = std::min(batch.num_tiles - first, 64);
  uint64_t tiles = 0;
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto passed = hn::LoadU(d, batch.passed + first + i);
    uint64_t bits = 0;
    hn::StoreMaskBits(d, hn::Ne(passed, hn::Zero(d)), reinterpret_cast<uint8_t*>(&bits));
    tiles |= bits << i;
  }
  for (; i < count; ++i) tiles |= uint64_t{batch.passed[first + i] != 0} << i;
  return tiles;
}

// In a long scan nothing passes of most tiles, but no branch foresees of which.
template <bool kWithPositions>
HWY_INLINE int Collect(const SketchPass::Scores& batch, float* scores, int32_t* positions) {
  const FloatTag d;
  const IntTag di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto iota = hn::Iota(di, 0);
  int count = 0;
  for (int first = 0; first < batch.num_tiles; first += 64) {
    for (uint64_t tiles = TilesThatPassed(batch, first); tiles != 0; tiles &= tiles - 1) {
      const int tile = first + std::countr_zero(tiles);
      for (int t = 0; t < SketchLayout::kSubBlockTokens; t += lanes) {
        const uint64_t passed = (batch.passed[tile] >> t) & ((1u << lanes) - 1);
        uint8_t bits[8];
        hwy::CopyBytes<8>(&passed, bits);
        const auto mask = hn::LoadMaskBits(d, bits);
        const auto from = hn::LoadU(d, batch.scores + tile * SketchLayout::kSubBlockTokens + t);
        hn::StoreU(hn::Compress(from, mask), d, scores + count);
        if (kWithPositions) {
          const auto at = hn::Add(iota, hn::Set(di, batch.positions[tile] + t));
          hn::StoreU(hn::Compress(at, hn::RebindMask(di, mask)), di, positions + count);
        }
        count += std::popcount(passed);
      }
    }
  }
  return count;
}

int CollectPassedVectors(const SketchPass::Scores& batch, float* scores, int32_t* positions) {
  return Collect<true>(batch, scores, positions);
}
int CopyPassedVectors(const SketchPass::Scores& batch, float* scores) {
  return Collect<false>(batch, scores, nullptr);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(CollectPassedVectors);
HWY_EXPORT(CopyPassedVectors);

int CollectPassed(const SketchPass::Scores& batch, float* scores, int32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(CollectPassedVectors)(batch, scores, positions);
}
int CopyPassed(const SketchPass::Scores& batch, float* scores) {
  return HWY_DYNAMIC_DISPATCH(CopyPassedVectors)(batch, scores);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
