#pragma once

#include <cstddef>

#include "offload/kv_layout.h"

namespace tokenbutler {

// What a selection policy derives from a sequence's keys (low-bit keys, projections, page bounds)
// is kept in blocks of the same pool as the keys, so that capacity, sharing and forking are one
// mechanism. A state block holds the records of several consecutive KV blocks of the sequence:
//
//   [num_layers][num_kv_heads]{ lane: [kv_blocks()] records of record_bytes }
//
// so that the records of one layer and KV head lie one after the other: what a scan reads. Lanes
// are where a KV block has the rows of the same layer and KV head.
struct StateLayout {
  size_t record_bytes = 0;  // of one KV block, layer and KV head; a multiple of 64; 0: no state
  int num_layers = 0;
  int num_kv_heads = 0;
  // Of the pool's blocks: bytes of a lane, and from a lane to the next (KvLayout).
  size_t lane_bytes = 0;
  size_t lane_stride = 0;

  static StateLayout For(const KvLayout& kv, size_t record_bytes) {
    return {.record_bytes = (record_bytes + 63) / 64 * 64,
            .num_layers = kv.num_layers,
            .num_kv_heads = kv.num_kv_heads,
            .lane_bytes = kv.head_bytes(),
            .lane_stride = kv.lane_stride()};
  }
  // KV blocks whose records fit one state block. 0: not even one does, the policy cannot be used.
  int kv_blocks() const {
    return record_bytes == 0 ? 0 : static_cast<int>(lane_bytes / record_bytes);
  }
  // State blocks for `num_kv_blocks` KV blocks. REQUIRES: record_bytes == 0 or kv_blocks() > 0.
  int blocks_for(int num_kv_blocks) const {
    return record_bytes == 0 ? 0 : (num_kv_blocks + kv_blocks() - 1) / kv_blocks();
  }
  // Byte offset in its state block of the record of KV block `kv_block` (of the sequence). Record
  // kv_block + 1 follows it unless the state block ends.
  size_t offset(int layer, int kv_head, int kv_block) const {
    const size_t lane = static_cast<size_t>(layer) * num_kv_heads + kv_head;
    return lane * lane_stride + static_cast<size_t>(kv_block % kv_blocks()) * record_bytes;
  }
};

}  // namespace tokenbutler
