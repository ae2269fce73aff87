#pragma once

#include "base/dtype.h"
#include "engine/kernels/online_softmax.h"

namespace tokenbutler {

// The keys of a block that a row sees: [begin, end), within the block; none if begin >= end.
struct VisibleKeys {
  int begin = 0;
  int end = 0;
};

// The step of online softmax between the two matrix products of a block of attention: turns
// logits into weights and brings the states of the rows up to date, all but the sum of the values.
//   max' = max(max, softmax_scale * logit over the visible keys)
//   weight = exp(softmax_scale * logit - max'), 0 for keys that are not visible
//   sum' = sum * exp(max - max') + the weights as stored
//   acc' = acc * exp(max - max'); the caller adds weights * values
// A row that sees none of the keys keeps its state.
struct SoftmaxBlockParams {
  float* logits = nullptr;  // [num_rows, num_keys] NaN makes the row NaN; changed
  void* weights = nullptr;  // [num_rows, num_keys]; float32 ones may take the place of the logits
  DType weights_dtype = DType::kF32;  // or kBF16: weights are rounded to nearest even
  int num_rows = 0;
  int num_keys = 0;                      // a multiple of kSoftmaxBlockKeys
  const VisibleKeys* visible = nullptr;  // [num_rows]
  float softmax_scale = 1;               // above 0
  OnlineSoftmaxState* states = nullptr;  // [num_rows]
  int head_dim = 0;                      // of the states' acc
};
inline constexpr int kSoftmaxBlockKeys = 16;

// Float32; one thread. A row's result does not depend on the other rows.
void SoftmaxBlock(const SoftmaxBlockParams& params);

// The specification; weights in float64 before they are rounded.
void SoftmaxBlockPlain(const SoftmaxBlockParams& params);

}  // namespace tokenbutler
