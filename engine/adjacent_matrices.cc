#include "engine/adjacent_matrices.h"

#include <algorithm>

namespace tokenbutler {

absl::StatusOr<TensorView> JoinAdjacent(absl::Span<const TensorView> matrices,
                                        std::string_view what) {
  TensorView joined = matrices[0];
  for (const TensorView& next : matrices.subspan(1)) {
    const std::byte* end = joined.as<std::byte>() + joined.num_bytes();
    if (next.as<std::byte>() != end || next.dtype != joined.dtype || next.rank != 2 ||
        next.shape[1] != joined.shape[1]) {
      return InternalError("the matrices {} are not adjacent in memory", what);
    }
    joined.shape[0] += next.shape[0];
  }
  return joined;
}

std::vector<float> JoinBiases(absl::Span<const TensorView> biases,
                              absl::Span<const TensorView> matrices) {
  std::vector<float> joined;
  if (std::all_of(biases.begin(), biases.end(), [](const TensorView& b) { return b.empty(); })) {
    return joined;
  }
  for (size_t i = 0; i < biases.size(); ++i) {
    const size_t size = matrices[i].shape[0];
    if (biases[i].empty()) {
      joined.resize(joined.size() + size, 0.0f);
    } else {
      joined.insert(joined.end(), biases[i].as<float>(), biases[i].as<float>() + size);
    }
  }
  return joined;
}

}  // namespace tokenbutler
