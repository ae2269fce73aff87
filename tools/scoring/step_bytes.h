#pragma once

#include "engine/selection/attention_params.h"
#include "offload/kv_layout.h"
#include "offload/state_layout.h"

namespace tokenbutler {

// What a decode step must read at least, in bytes, apart from the weights.
struct StepBytes {
  double streamed = 0;  // one after the other
  double gathered = 0;  // rows here and there

  // At these speeds, `weight_bytes` of weights included; milliseconds.
  double FloorMs(double weight_bytes, double read_bytes_s, double gather_bytes_s) const {
    return 1e3 * ((weight_bytes + streamed) / read_bytes_s + gathered / gather_bytes_s);
  }
};

struct StepShape {
  AttentionParams params;
  int hidden_size = 0;  // of the model
  KvLayout kv;
  StateLayout state;  // of the policy
  int context_len = 0;
  double attended_tokens = 0;  // by each layer and KV head, mean
};

// K and V rows of the attended tokens, and what the policy reads of all tokens, averaged over its
// interval.
StepBytes BytesOfStep(const StepShape& shape);

}  // namespace tokenbutler
