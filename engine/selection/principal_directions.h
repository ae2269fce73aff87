#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// The first `num_rows` keys of one layer and KV head, all of them written.
struct FirstKeys {
  const KvLayout* layout = nullptr;
  absl::Span<std::byte* const> blocks;  // in token order
  int layer = 0, kv_head = 0;
  int num_rows = 0;
};

// Adds sum k k^T over the rows to `moment` [head_dim, head_dim], of which one triangle alone has a
// meaning. Any thread.
void AddSecondMoment(const FirstKeys& keys, double* moment);

// The principal directions of all rows whose second moments were added up; as below.
void PrincipalDirections(const double* moment, int head_dim, int dim, float* out);

// The `dim` principal directions of the rows, uncentred: the eigenvectors of sum k k^T with the
// largest eigenvalues, largest first, each with its largest component positive. `out`
// [head_dim, dim], a direction per column. Rows that are not finite, and no rows at all, give the
// first `dim` axes. Any thread. REQUIRES: dim <= head_dim.
void PrincipalDirections(const FirstKeys& keys, int dim, float* out);

}  // namespace tokenbutler
