#pragma once

#include <algorithm>
#include <cstring>

#include "engine/kernels/cpu/sketch_tiles.h"

namespace tokenbutler {

// Loops over lanes that compilers vectorise: always inlined, so that each caller's instruction set
// applies.

constexpr int kSketchLanes = 16;

// sums[lane] += sum of the products of field bits `shift` ... of the lane's 4 bytes and `query`.
[[gnu::always_inline]] inline void AddDots(const uint8_t* line, int shift, int mask,
                                           const int8_t* query, int* sums) {
  for (int lane = 0; lane < kSketchLanes; ++lane) {
    int dot = 0;
    for (int b = 0; b < 4; ++b) dot += (line[lane * 4 + b] >> shift & mask) * query[b];
    sums[lane] += dot;
  }
}

[[gnu::always_inline]] inline void ScoreTileGeneric(const SketchTiles& p, int block,
                                                    const std::byte* tile, float* scores) {
  const auto* lines = reinterpret_cast<const uint8_t*>(tile);
  const int bits = p.layout->bits, fields = 8 / bits, mask = (1 << bits) - 1;
  for (int h = 0; h < p.num_heads; ++h) {
    const int8_t* query = p.queries->codes[block][h];
    int sums[kSketchLanes] = {};
    for (int c = 0; c < p.layout->padded_dim(); c += 4) {
      const int group = c / 4;
      AddDots(lines + group / fields * 64, group % fields * bits, mask, query + c, sums);
    }
    const float factor = p.queries->factors[h], base = p.queries->bases[h][block];
    for (int lane = 0; lane < kSketchLanes; ++lane) {
      const float score = sums[lane] * factor + base;
      scores[lane] = h == 0 && !p.accumulate ? score : std::max(scores[lane], score);
    }
  }
}

}  // namespace tokenbutler
