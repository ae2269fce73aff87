#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// The first `num_rows` keys of one layer and KV head, all of them written. `blocks[b]` is where the
// key rows of block b begin.
struct KeyRows {
  absl::Span<const std::byte* const> blocks;
  int num_rows = 0;
  const KvLayout* layout = nullptr;
};

// The `dim` principal directions of the rows, uncentred: the eigenvectors of sum k k^T with the
// largest eigenvalues, largest first, each with its largest component positive. `out`
// [head_dim, dim], a direction per column. Rows that are not finite, and no rows at all, give the
// first `dim` axes. Any thread. REQUIRES: dim <= head_dim.
void PrincipalDirections(const KeyRows& rows, int dim, float* out);

}  // namespace tokenbutler
