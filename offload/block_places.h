#pragma once

#include <algorithm>

#include "offload/kv_layout.h"
#include "offload/resident_tokens.h"

namespace tokenbutler {

// Which blocks of a sequence lie whole in its part of the device tier, and where: arithmetic only.
// The first blocks stay in places of their own (sink); of the others the newest are in a ring of
// places, in which a new block takes the place of the oldest. Host blocks and places have the same
// layout, so that a token has the same row number inside either.
//
//   places:  [0, num_sink) sink | [num_sink, num_sink + num_ring) ring
struct BlockPlaces {
  int num_sink = 0;
  int num_ring = 0;

  // The ring holds at any time the last local_window + prediction_interval tokens and one block of
  // keys that no policy has quantised or projected yet: no token is outside the ring and unscored.
  static BlockPlaces For(const KvLayout& layout, const ResidentOptions& options) {
    const int ring_tokens = options.local_window + options.prediction_interval + layout.block_size;
    // The newest block may hold a single token.
    return {.num_sink = layout.blocks_for(options.sink_tokens),
            .num_ring = layout.blocks_for(ring_tokens - 1) + 1};
  }

  int count() const { return num_sink + num_ring; }
  // The oldest block in the ring when `newest` is the block of the newest token.
  int ring_begin(int newest) const { return std::max(num_sink, newest - num_ring + 1); }
  bool holds(int block, int newest) const {
    return block <= newest && (block < num_sink || block >= ring_begin(newest));
  }
  // REQUIRES: holds(block, newest) for some `newest`.
  int place(int block) const {
    return block < num_sink ? block : num_sink + (block - num_sink) % num_ring;
  }
};

}  // namespace tokenbutler
