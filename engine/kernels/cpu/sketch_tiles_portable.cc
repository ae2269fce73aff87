#include "engine/kernels/cpu/sketch_tiles_generic.h"

namespace tokenbutler {

void ScoreTilesPortable(const SketchTiles& p) {
  const SketchLayout& layout = *p.layout;
  for (int tile = 0; tile < p.num_blocks * layout.sub_blocks(); ++tile) {
    const int block = tile / layout.sub_blocks(), in_block = tile % layout.sub_blocks();
    float* scores = p.scores + tile * kSketchLanes;
    ScoreTileGeneric(p, block,
                     p.records[block] + layout.codes_offset() + in_block * layout.sub_block_bytes(),
                     scores);
    p.passed[tile] = PassedOf(scores, p.threshold);
  }
}

}  // namespace tokenbutler
