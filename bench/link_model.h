#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "offload/resident_tokens.h"

namespace tokenbutler {

// A decode step's transfers, in the order of sending.
using StepTransfers = std::vector<LayerTransfer>;

// A device that computes a step in a given time, and a link to its host: what the traffic that was
// counted on a small model means there. Modelled, not measured, and by arithmetic alone: no clock
// is read, so that equal transfers give equal times however busy this machine is.
//
// How traffic scales: each layer of the larger model attends to num_kv_heads lists of token_budget
// tokens, of which the same share travels, at the same points of the step, as in the layer of the
// model that was run; as many layers more as it has more.
//
// How time passes: each layer takes step_ms / num_layers, `before_attention` of it until it has
// chosen its tokens. The link carries one transfer after the other: it arrives at
//   max(sent, link free) + bytes / bandwidth + latency.
// A layer waits, once it has chosen, for what was sent for it before, and then for its misses.
// Deferred misses are waited for at the next step.
struct LinkModel {
  double gbps = 25;  // 10^9 bytes a second
  double latency_us = 10;
  double step_ms = 8;  // all else: the weights of 8 G parameters in bf16 at 2 TB/s
  // Llama-3.1-8B. Its q, k and v weights are 25 of the 218 million of a layer.
  double before_attention = 0.115;
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
  // What was run: a sequence's steps, one after another.
  struct Run {
    absl::Span<const StepTransfers> steps;
    int num_layers = 0;
    double token_bytes = 0;  // K and V row of one token, layer and KV head together
    int64_t lookups = 0;     // tokens that layers and KV heads attended to in these steps
    bool defers = false;     // misses go to the next step
  };
  // The mean step. The run begins with a free link.
  Step StepOf(const Run& run) const;

  // Bytes of the device tier that one sequence of the larger model takes when a sequence of the
  // model that was run has these options, numbers of tokens in proportion to the budget.
  int64_t DeviceBytes(const ResidentOptions& options) const;
};

}  // namespace tokenbutler
