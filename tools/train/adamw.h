#pragma once

#include <cstdint>

#include "tools/train/aligned_floats.h"

namespace tokenbutler {

// AdamW (arXiv 1711.05101, algorithm 2), betas 0.9 and 0.999, epsilon 1e-8.
class AdamW {
 public:
  explicit AdamW(float weight_decay) : weight_decay_(weight_decay) {}

  // One update of `values`, all of them with the same learning rate.
  // REQUIRES: as many gradients as values, and as in the calls before.
  void Update(float learning_rate, const AlignedFloats& gradients, AlignedFloats* values);

  // What the next update depends on: resuming is setting it.
  struct State {
    int64_t num_updates = 0;
    AlignedFloats first_moment, second_moment;  // empty before the first update
  };
  State& state() { return state_; }

 private:
  const float weight_decay_;
  State state_;
};

// Warm-up from 0 over the first share of the steps, then a cosine to 0. `step` from 0.
float LearningRateAt(int64_t step, int64_t num_steps, float warmup, float learning_rate);

// The Euclidean norm, in float64.
double Norm(const AlignedFloats& values);

}  // namespace tokenbutler
