#pragma once

#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/models/model_config.h"

namespace tokenbutler {

// Rotary position embedding of one model: the rotation frequency of each pair of channels
// (i, i + head_dim / 2), scaled as its RopeConfig says. Immutable; any thread.
//
// Sources: RoFormer (arXiv 2104.09864); scaling kinds as transformers' modeling_rope_utils; YaRN
// (arXiv 2309.00071); frequency factors as GGUF's rope_freqs.weight.
class Rope {
 public:
  // `max_position` stands in for rope.original_max_position where that is 0.
  // INVALID_ARGUMENT naming the field when the configuration makes no sense.
  static absl::StatusOr<Rope> Create(const RopeConfig& rope, int head_dim, int max_position);

  int half_dim() const { return static_cast<int>(inverse_frequencies_.size()); }

  // Radians per position. [head_dim / 2]
  absl::Span<const float> inverse_frequencies() const { return inverse_frequencies_; }
  // What cosines and sines are multiplied by (YaRN's attention temperature), 1 otherwise.
  float attention_factor() const { return attention_factor_; }

  // Writes attention_factor * cos and * sin of position * inverse_frequencies.
  // `cos`, `sin`: [half_dim] each. The angle is rounded to float32 as in the reference.
  void Rotation(int position, float* cos, float* sin) const;

 private:
  Rope(std::vector<float> inverse_frequencies, float attention_factor);

  std::vector<float> inverse_frequencies_;
  float attention_factor_;
};

}  // namespace tokenbutler
