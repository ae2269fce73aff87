#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "offload/token_selection.h"

namespace tokenbutler {

// The blocks of one layer in which partial scans look, per KV head: those that held most of the
// attention when all tokens were last scanned, and those added since. Attention moves from token to
// token at every step, but mostly within the same blocks.
class BestBlocks {
 public:
  // Of as many layers' lists, and of what Rank() works in.
  static int64_t MostBytes(int num_layers, int num_kv_heads, int max_blocks);

  // What Rank() works in: attention mass per KV head and block. One serves all layers.
  using Masses = std::vector<std::vector<float>>;
  static void Reserve(int num_kv_heads, int max_blocks, Masses* masses);

  // Takes the memory for sequences of up to `max_blocks` blocks.
  void Reserve(int num_kv_heads, int max_blocks);

  // Ranks the blocks by the attention mass of the tokens that a scan of [begin, end) found in each,
  // and keeps the best: `fraction` of them, rounded up, and enough for `count` tokens. Scores are
  // logs of attention weights but for a constant. Equals: the lower block. A block that reaches
  // beyond `end` counts as added since.
  void Rank(const TokenSelection& found, int block_size, float fraction, int begin, int end,
            int count, Masses* masses, ComputePool& pool);
  bool has_ranking() const { return has_ranking_; }

  // Adds the blocks before `last_block` that Rank() did not know.
  void AddUpTo(int last_block);

  // Ascending. REQUIRES: has_ranking().
  absl::Span<const int32_t> of(int kv_head) const { return heads_[kv_head]; }

 private:
  bool has_ranking_ = false;
  std::vector<std::vector<int32_t>> heads_;  // [num_kv_heads]
  int known_blocks_ = 0;                     // those from here on are in every list
};

}  // namespace tokenbutler
