#include "engine/kernels/cpu/sketch_tiles_generic.h"

namespace tokenbutler {

void ScoreTilesPortable(const SketchTiles& p) {
  const std::byte* const* tile = p.tiles;
  float* scores = p.scores;
  for (int block = 0; block < p.num_blocks; ++block) {
    for (int t = 0; t < p.tiles_of_block[block]; ++t, ++tile, scores += kSketchLanes) {
      ScoreTileGeneric(p, block, *tile, scores);
    }
  }
}

}  // namespace tokenbutler
