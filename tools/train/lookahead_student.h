#pragma once

#include "tools/train/student.h"

namespace tokenbutler {

// Kind lookahead: the consumer layers' own queries taken early
// (engine/selection/predicted_queries),
//   q = RoPE(W_q n + b + U V n),  n = norm(h) by the consumer's input norm,
// with a learned correction of rank r, V [r, E] random at the start and U [H d_h, r] zero, so that
// they begin without one; then projected, or scored as they are against the cached keys.
// As NewStudent, whose checks have been made.
std::unique_ptr<Student> NewLookaheadStudent(const StudentOptions& options,
                                             const SelectionResources& model, ComputePool& pool,
                                             absl::Span<const float> directions, uint64_t seed);

}  // namespace tokenbutler
