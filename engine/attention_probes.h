#pragma once

#include <cstdint>
#include <vector>

namespace tokenbutler {

// What is to be found out about a sparse sequence's attention, layer by layer and head by head, at
// the probes that the runner makes (StepRunnerOptions::recall_probe_rate).
struct ProbeParams {
  bool per_head = false;
  // Tokens of the prompt, ascending: whether the layers attend to them.
  std::vector<int32_t> watched = {};
  // Of decode steps whose token stands at this position or behind it only.
  int from_position = 0;

  bool any() const { return per_head || !watched.empty(); }
  bool operator==(const ProbeParams&) const = default;
};

// Sums over the probes of one layer and KV head.
struct HeadProbes {
  int64_t count = 0;
  // Share of the softmax mass over all tokens that the attended ones hold, mean over the KV head's
  // query heads.
  double mass = 0;
  // Of the tokens that `exact` would have chosen now, with the same sink tokens, local window and
  // budget, the share that is attended to; at the `choices` probes where there was anything to
  // choose.
  int64_t choices = 0;
  double overlap = 0;
  // Share of the watched tokens that is attended to; the mass that dense attention would give
  // them, and the part of it that goes to those attended to; mean over the query heads.
  double watched = 0;
  double watched_mass = 0;
  double attended_watched_mass = 0;
};

// Sums over the probes of one layer.
struct LayerProbes {
  int64_t count = 0;
  double watched_by_any = 0;  // share of the watched tokens that some KV head attends to
};

// Empty when nothing was asked for.
struct AttentionProbes {
  std::vector<LayerProbes> layers;  // [num_layers]
  std::vector<HeadProbes> heads;    // [num_layers, num_kv_heads]
};

}  // namespace tokenbutler
