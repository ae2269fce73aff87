#pragma once

#include <cstdint>

namespace tokenbutler {

// Writes the positions of the min(k, n) largest of scores[0 .. n) to `indices`, ascending, and
// returns how many. Of equal scores the lower position comes first (-0 equals 0), and NaN comes
// after every number. Exact: finds the k-th largest value by counting passes, never sorts.
// `indices` overlaps nothing and has room for min(k, n) + 16 (vectors are stored whole). Any
// thread; allocates nothing.
int TopK(const float* scores, int n, int k, int32_t* indices);

// The specification: a stable sort.
int TopKPlain(const float* scores, int n, int k, int32_t* indices);

// The k-th largest of scores[0 .. n), NaN as if it were minus infinity. REQUIRES: 1 <= k <= n.
float KthLargest(const float* scores, int n, int k);

}  // namespace tokenbutler
