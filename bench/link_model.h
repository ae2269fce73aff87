#pragma once

#include "offload/resident_tokens.h"

namespace tokenbutler {

// A device that computes a step in a given time, and a link to its host: what the traffic that was
// counted on a small model means there. Modelled, not measured. The rule by which traffic scales:
// each of num_layers x num_kv_heads lists of the larger model attends to token_budget tokens, of
// which the same share travels, ahead of time or on demand, as in the lists of the model that was
// run.
struct LinkModel {
  double gbps = 25;  // 10^9 bytes a second
  double latency_us = 10;
  double step_ms = 8;  // all else: the weights of 8 G parameters in bf16 at 2 TB/s
  // Llama-3.1-8B
  int num_layers = 32;
  int num_kv_heads = 8;
  int head_dim = 128;
  int element_bytes = 2;
  int token_budget = 4096;

  struct Step {
    double mb = 0;        // over the link, to the device
    double link_ms = 0;   // the link is busy
    double stall_ms = 0;  // the step waits
  };
  // The mean step of a sequence with these counts, whose K and V row of one token have
  // `token_bytes` together. `defers`: misses go to the next step. Rows that were sent ahead or
  // deferred stall a step only as far as they keep the link busy for longer than a step takes; rows
  // on demand stall each layer for its share of them and one latency.
  Step StepOf(const OffloadCounters& counters, double token_bytes, bool defers) const;
};

}  // namespace tokenbutler
