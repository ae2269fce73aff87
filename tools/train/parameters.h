#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tools/train/aligned_floats.h"

namespace tokenbutler {

// The parameters that are trained, with their gradients: arrays that lie one after the other, each
// on cache lines of its own, so that optimiser and checkpoint see one vector. All arrays are added
// before the first is used.
class Parameters {
 public:
  struct Array {
    size_t begin = 0, size = 0;
  };

  // A new array of zeros. No pointers into others stay valid.
  Array Add(size_t size);

  float* values(const Array& array) { return values_.data() + array.begin; }
  const float* values(const Array& array) const { return values_.data() + array.begin; }
  float* gradients(const Array& array) { return gradients_.data() + array.begin; }

  // Of all arrays, with zeros between them.
  AlignedFloats& all_values() { return values_; }
  const AlignedFloats& all_values() const { return values_; }
  AlignedFloats& all_gradients() { return gradients_; }
  // Of all arrays together, without what lies between them.
  size_t num_values() const { return num_values_; }

  std::vector<float> Copy(const Array& array) const {
    return {values(array), values(array) + array.size};
  }

 private:
  AlignedFloats values_, gradients_;
  size_t num_values_ = 0;
};

}  // namespace tokenbutler
