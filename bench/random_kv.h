#pragma once

#include <vector>

#include "base/status.h"
#include "engine/selection/token_selector.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {

// Writes the K and V rows of the sequence's next `num_tokens` tokens: independent normal channels
// with the means and deviations that the model's own keys and values have, per layer and KV head,
// over a short text of random tokens. For measuring speed at depths that take too long to prefill:
// as many bytes as real rows and logits of the same size, but no structure, so nothing that depends
// on what keys contain can be learned from it. The same rows in every run. REQUIRES: room.
absl::Status AppendRandomRows(MeasuredModel& model, int num_tokens, MeasuredSequence* sequence);

// Queries of a prompt's last tokens, for the policies that want to see some: random ones.
class RandomQueries {
 public:
  explicit RandomQueries(const ModelConfig& config);
  // [num_layers]; valid as long as this.
  const std::vector<PrefillQueries>& layers() const { return layers_; }

 private:
  std::vector<float> values_;
  std::vector<PrefillQueries> layers_;
};

}  // namespace tokenbutler
