#pragma once

#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace tokenbutler {

// The matrices [out_i, in] that follow each other in memory as one matrix [sum of out_i, in]: one
// pass over the input instead of several. INTERNAL naming `what` when they are not adjacent.
absl::StatusOr<TensorView> JoinAdjacent(absl::Span<const TensorView> matrices,
                                        std::string_view what);

// The biases of such matrices, zeros where one has none; empty when none has any.
std::vector<float> JoinBiases(absl::Span<const TensorView> biases,
                              absl::Span<const TensorView> matrices);

}  // namespace tokenbutler
