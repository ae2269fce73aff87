#pragma once

#include <algorithm>
#include <cmath>
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
  const int fields = 8 / p.bits, mask = (1 << p.bits) - 1;
  for (int h = 0; h < p.num_heads; ++h) {
    const int8_t* query = p.queries->codes[block][h];
    int sums[kSketchLanes] = {};
    for (int c = 0; c < p.padded_dim; c += 4) {
      const int group = c / 4;
      AddDots(lines + group / fields * 64, group % fields * p.bits, mask, query + c, sums);
    }
    const float factor = p.queries->factors[block][h], base = p.queries->bases[block][h];
    for (int lane = 0; lane < kSketchLanes; ++lane) {
      const float score = sums[lane] * factor + base;
      scores[lane] = h == 0 && !p.accumulate ? score : std::max(scores[lane], score);
    }
  }
}

// Up to eight sub-blocks whose statistics begin at `lines`.
[[gnu::always_inline]] inline void EstimateEightGeneric(const SketchStatistics& p, int block,
                                                        const std::byte* statistics,
                                                        int num_sub_blocks, float* out) {
  const auto* means = reinterpret_cast<const uint8_t*>(statistics);
  const auto* deviations = means + p.layout->means_bytes();
  const int dim = p.layout->statistics_dim();
  for (int h = 0; h < p.num_heads; ++h) {
    const int8_t* query = p.queries->codes[block][h];
    const int8_t* weights = p.queries->squares[block][h];
    int mean[8] = {}, variance[8] = {};
    for (int c = 0; c < dim; ++c) {
      const uint8_t* mean_lane = means + c / 16 * 64 + c % 16 / 8 * 32 + c % 4;
      const uint8_t* std_lane = deviations + c / 32 * 64 + c % 32 / 16 * 32 + c % 4;
      for (int s = 0; s < 8; ++s) {
        mean[s] += (mean_lane[s * 4] >> c % 8 / 4 * 4 & 15) * query[c];
        const int std = std_lane[s * 4] >> c % 16 / 4 * 2 & 3;
        variance[s] += std * std * weights[c];
      }
    }
    const float factor = p.queries->factors[block][h], base = p.queries->bases[block][h];
    const float deviation = 2 * p.layout->std_step() * kSketchRootOfSquareUnit;
    for (int s = 0; s < num_sub_blocks; ++s) {
      const float estimate = mean[s] * (factor * p.layout->mean_step()) + base +
                             std::sqrt(static_cast<float>(variance[s])) * (factor * deviation);
      out[s] = h == 0 && !p.accumulate ? estimate : std::max(out[s], estimate);
    }
  }
}

[[gnu::always_inline]] inline void EstimateSubBlocksGeneric(const SketchStatistics& p) {
  const int sub_blocks = p.layout->sub_blocks();
  const size_t group_bytes = p.layout->means_bytes() + p.layout->deviations_bytes();
  for (int block = 0; block < p.num_blocks; ++block) {
    const std::byte* group = p.records[block] + p.layout->statistics_offset();
    for (int s = 0; s < sub_blocks; s += 8, group += group_bytes) {
      EstimateEightGeneric(p, block, group, std::min(8, sub_blocks - s),
                           p.estimates + block * sub_blocks + s);
    }
  }
}

}  // namespace tokenbutler
