#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tokenbutler {

// Random numbers that depend on a seed, a purpose and an index only: a sample is the same whatever
// was made before it, on every machine.
class SeededRandom {
 public:
  SeededRandom(uint64_t seed, std::string_view purpose, uint64_t index);

  uint64_t Next();                 // any 64 bits
  int Below(int bound);            // uniform in [0, bound). REQUIRES: bound > 0
  int Between(int low, int high);  // uniform in [low, high]. REQUIRES: low <= high

  // REQUIRES: not empty.
  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[Below(static_cast<int>(values.size()))];
  }
  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (int i = static_cast<int>(values->size()) - 1; i > 0; --i) {
      std::swap((*values)[i], (*values)[Below(i + 1)]);
    }
  }
  // `count` different numbers of [0, bound), in random order. REQUIRES: count <= bound.
  std::vector<int> Distinct(int count, int bound);

 private:
  uint64_t seed_;
  uint32_t purpose_;
  uint64_t index_;
  uint32_t drawn_ = 0;
};

}  // namespace tokenbutler
