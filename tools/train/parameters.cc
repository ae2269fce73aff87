#include "tools/train/parameters.h"

namespace tokenbutler {

Parameters::Array Parameters::Add(size_t size) {
  constexpr size_t kLine = 16;  // floats
  const Array array = {.begin = values_.size(), .size = size};
  values_.resize((array.begin + size + kLine - 1) / kLine * kLine);
  gradients_.resize(values_.size());
  num_values_ += size;
  return array;
}

}  // namespace tokenbutler
