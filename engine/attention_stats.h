#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "offload/resident_tokens.h"

namespace tokenbutler {

// Layers of decode steps in which a sparse sequence attended to everything, by reason.
struct DenseFallbacks {
  int64_t short_context = 0;  // the budget holds all tokens
  int64_t first_layer = 0;    // AttentionParams::dense_first_layer, or the policy says so
  int64_t window = 0;         // the model's own sliding window is all that the layer sees
};

// What the attention of one sequence has done so far, in decode steps.
struct AttentionStats {
  OffloadCounters offload;
  int64_t attended_tokens = 0;  // summed over decode steps, layers and KV heads
  int64_t attended_lists = 0;   // decode steps x layers x KV heads: the mean's denominator
  int64_t context_tokens = 0;   // what a dense sequence would have attended to, summed likewise
  int64_t scored_tokens = 0;    // what the policy looked at to choose, likewise
  DenseFallbacks fallbacks;
  absl::Duration predictor;  // spent on choosing
  double recall_sum = 0;     // of the attention mass, at the probes
  int64_t recall_probes = 0;
};

}  // namespace tokenbutler
