#pragma once

#include <vector>

#include "base/status.h"
#include "tools/train/teacher.h"
#include "tools/train/token_sequences.h"

namespace tokenbutler {

// The principal directions of a model's keys, uncentred (engine/selection/principal_directions.h),
// over the first `num_sequences` training sequences: [L, Hkv, d_h, dim], a direction per column,
// the one with the largest eigenvalue first. Errors of the sequences and of the teacher.
// REQUIRES: dim <= d_h.
absl::StatusOr<std::vector<float>> FindKeyDirections(Teacher& teacher, TokenSequences& sequences,
                                                     int num_sequences, int dim);

}  // namespace tokenbutler
