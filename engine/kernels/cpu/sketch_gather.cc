#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/kernels/sketch_scan.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/sketch_gather.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// Eight lanes at most: a line of four-bit codes holds eight channels.
using FloatTag = hn::CappedTag<float, 8>;
using IntTag = hn::RebindToSigned<FloatTag>;

constexpr int kMaxDim = 256;
constexpr int kTokensAhead = 32;

// Where codes are in a token's four bytes of a line: channel c is the bits from 8 (c % 4) +
// bits (c / 4) on.
struct LineShifts {
  alignas(64) int32_t of_channel[32];
};

// scale and zero of a block's channels.
struct WideLevels {
  alignas(64) float scales[kMaxDim];
  alignas(64) float zeros[kMaxDim];
};

void WidenLevels(const SketchLayout& layout, const std::byte* record, WideLevels* levels) {
  const auto* scales = reinterpret_cast<const BF16*>(record + layout.scales_offset());
  const auto* zeros = reinterpret_cast<const BF16*>(record + layout.zeros_offset());
  for (int c = 0; c < layout.padded_dim(); ++c) {
    levels->scales[c] = ToFloat(scales[c]);
    levels->zeros[c] = ToFloat(zeros[c]);
  }
}

// key~ of one token: [padded_dim].
void WidenKey(const SketchLayout& layout, const LineShifts& shifts, const std::byte* record,
              const WideLevels& levels, int token, float* key) {
  const FloatTag d;
  const IntTag di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int line_channels = 32 / layout.bits;
  const auto mask = hn::Set(di, layout.levels());
  const std::byte* codes =
      record + layout.codes_offset() + token / 16 * layout.sub_block_bytes() + token % 16 * 4;
  for (int c = 0; c < layout.padded_dim(); c += line_channels) {
    int32_t word;
    std::memcpy(&word, codes + c / line_channels * 64, 4);
    for (int i = 0; i < line_channels; i += lanes) {
      const auto code =
          hn::And(hn::Shr(hn::Set(di, word), hn::Load(di, shifts.of_channel + i)), mask);
      hn::Store(hn::MulAdd(hn::ConvertTo(d, code), hn::Load(d, levels.scales + c + i),
                           hn::Load(d, levels.zeros + c + i)),
                d, key + c + i);
    }
  }
}

// Begins to load what the i-th chosen token needs.
void Fetch(const SketchLayout& layout, const SketchGatherParams::Head& head, int i) {
  if (i >= head.num_tokens) return;
  const int block = head.tokens[i] / layout.block_size;
  const int token = head.tokens[i] - block * layout.block_size;
  const std::byte* codes = head.keys.record(layout, block) + layout.codes_offset() +
                           token / 16 * layout.sub_block_bytes();
  for (size_t at = 0; at < layout.sub_block_bytes(); at += 64) __builtin_prefetch(codes + at);
}

// Makes block `block` of one head's gathered sketch.
void GatherBlock(const SketchGatherParams& p, const SketchGatherParams::Head& head, int block) {
  constexpr int kMaxBlock = 128;
  const int block_size = p.gathered.block_size, dim = p.layout.padded_dim();
  alignas(64) float keys[kMaxBlock * kMaxDim];
  LineShifts shifts;
  for (int c = 0; c < 32; ++c) shifts.of_channel[c] = 8 * (c % 4) + p.layout.bits * (c / 4);
  WideLevels levels;
  int levels_of = -1;
  for (int i = 0; i < block_size; ++i) {
    const int token = head.tokens[std::min(block * block_size + i, head.num_tokens - 1)];
    const int from = token / p.layout.block_size;
    const std::byte* record = head.keys.record(p.layout, from);
    Fetch(p.layout, head, block * block_size + i + kTokensAhead);
    if (from != levels_of) WidenLevels(p.layout, record, &levels);
    levels_of = from;
    WidenKey(p.layout, shifts, record, levels, token - from * p.layout.block_size, keys + i * dim);
  }
  SketchKeys({.layout = p.gathered,
              .keys = keys,
              .dtype = DType::kF32,
              .key_stride_bytes = dim * sizeof(float),
              .record = head.records + block * p.gathered.record_bytes()});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(GatherBlock);

void SketchGather(const SketchGatherParams& p, ComputePool& pool) {
  const int block_size = p.gathered.block_size;
  int max_blocks = 0;
  for (const SketchGatherParams::Head& head : p.heads) {
    max_blocks = std::max(max_blocks, (head.num_tokens + block_size - 1) / block_size);
  }
  pool.ParallelFor(static_cast<int>(p.heads.size()) * max_blocks, [&](int task) {
    const SketchGatherParams::Head& head = p.heads[task / max_blocks];
    const int block = task % max_blocks;
    if (block * block_size >= head.num_tokens) return;
    HWY_DYNAMIC_DISPATCH(GatherBlock)(p, head, block);
  });
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
