#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {

// Rounds of fitting two-bit levels to the keys of a block.
constexpr int kSketchFits = 2;

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

}  // namespace tokenbutler
