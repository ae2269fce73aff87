// Any bytes as a predictor file.

#include <cstddef>
#include <cstdint>

#include "engine/predictor/predictor_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<tokenbutler::Predictor> predictor =
      tokenbutler::ParsePredictor({reinterpret_cast<const std::byte*>(data), size});
  // What is accepted can be used, and be written again.
  if (predictor.ok() && !tokenbutler::PredictorFileBytes(*predictor).ok()) __builtin_trap();
  return 0;
}
