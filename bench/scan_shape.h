#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace tokenbutler {

// Whose keys a scan reads: the shapes of the models that the project's goals name.
struct ScanShape {
  int num_layers, num_kv_heads, group_size, head_dim;

  static ScanShape Of(int group_size) {
    return group_size == 7 ? ScanShape{24, 2, 7, 64} : ScanShape{30, 3, group_size, 64};
  }
  size_t num_heads() const { return static_cast<size_t>(num_layers) * num_kv_heads; }
};

constexpr int kDistinctBlocks = 512;  // of random keys, repeated in random order

inline std::vector<float> RandomNormals(size_t n, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(*random);
  return values;
}

}  // namespace tokenbutler
