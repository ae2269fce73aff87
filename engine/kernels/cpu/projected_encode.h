#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/projected_keys.h"

namespace tokenbutler {

// Byte offset in a record of one channel of one token (the first of two bytes for kBf16).
inline size_t ProjectedOffset(const ProjectedLayout& layout, int token, int channel) {
  const int per_lane = layout.format == ProjectedFormat::kBf16 ? 2 : 4;
  return layout.codes_offset() + static_cast<size_t>(token / 16) * layout.sub_block_bytes() +
         static_cast<size_t>(channel / per_lane) * 64 + static_cast<size_t>(token % 16) * 4 +
         static_cast<size_t>(channel % per_lane) * (4 / per_lane);
}

// Writes a record of `block_size` projected keys. `rows` [block_size, dim]. Levels: minimum and
// maximum of each channel and evenly between; 0 for channels that are not finite.
void EncodeProjected(const ProjectedLayout& layout, const float* rows, std::byte* record);

}  // namespace tokenbutler
