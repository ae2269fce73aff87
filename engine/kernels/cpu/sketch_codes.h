#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// One number of a record at a time: what the plain kernels are made of.

inline float SketchScale(const SketchLayout& layout, const std::byte* record, int channel) {
  return ToFloat(reinterpret_cast<const BF16*>(record + layout.scales_offset())[channel]);
}

inline float SketchZero(const SketchLayout& layout, const std::byte* record, int channel) {
  return ToFloat(reinterpret_cast<const BF16*>(record + layout.zeros_offset())[channel]);
}

// Where a code of a token is: byte offset in the record and bits to shift.
struct SketchCodePlace {
  size_t byte = 0;
  int shift = 0;
};

inline SketchCodePlace PlaceOfCode(const SketchLayout& layout, int token, int channel) {
  const int line_channels = 32 / layout.bits;
  const int in_line = channel % line_channels;
  return {.byte = layout.codes_offset() + (token / 16) * layout.sub_block_bytes() +
                  static_cast<size_t>(channel / line_channels) * 64 + (token % 16) * 4 +
                  in_line % 4,
          .shift = in_line / 4 * layout.bits};
}

inline int SketchCode(const SketchLayout& layout, const std::byte* record, int token, int channel) {
  const SketchCodePlace place = PlaceOfCode(layout, token, channel);
  return std::to_integer<int>(record[place.byte]) >> place.shift & layout.levels();
}

inline SketchCodePlace PlaceOfMean(const SketchLayout& layout, int sub_block, int channel) {
  const size_t group = sub_block / 8 * (layout.means_bytes() + layout.deviations_bytes());
  const int lane = channel % 16 / 8 * 8 + sub_block % 8;
  return {.byte = layout.statistics_offset() + group + static_cast<size_t>(channel / 16) * 64 +
                  lane * 4 + channel % 4,
          .shift = channel % 8 / 4 * 4};
}

inline SketchCodePlace PlaceOfStd(const SketchLayout& layout, int sub_block, int channel) {
  const size_t group = sub_block / 8 * (layout.means_bytes() + layout.deviations_bytes());
  const int lane = channel % 32 / 16 * 8 + sub_block % 8;
  return {.byte = layout.statistics_offset() + group + layout.means_bytes() +
                  static_cast<size_t>(channel / 32) * 64 + lane * 4 + channel % 4,
          .shift = channel % 16 / 4 * 2};
}

inline float SketchMean(const SketchLayout& layout, const std::byte* record, int sub_block,
                        int channel) {
  const SketchCodePlace place = PlaceOfMean(layout, sub_block, channel);
  const int code = std::to_integer<int>(record[place.byte]) >> place.shift & 15;
  return SketchZero(layout, record, channel) +
         SketchScale(layout, record, channel) * layout.mean_step() * code;
}

inline float SketchStd(const SketchLayout& layout, const std::byte* record, int sub_block,
                       int channel) {
  const SketchCodePlace place = PlaceOfStd(layout, sub_block, channel);
  const int code = std::to_integer<int>(record[place.byte]) >> place.shift & 3;
  return SketchScale(layout, record, channel) * layout.std_step() * code;
}

}  // namespace tokenbutler
