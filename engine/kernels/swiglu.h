#pragma once

namespace tokenbutler {

// The gated activation between the two halves of the MLP (arXiv 2002.05202), in float32:
//   out = silu(gate) * up,  silu(z) = z / (1 + exp(-z))
struct SwiGluParams {
  const float* gate_up = nullptr;  // [num_rows, 2 * intermediate_size]: a row is gate, then up
  float* out = nullptr;            // [num_rows, intermediate_size]; overlaps nothing
  int num_rows = 0;
  int intermediate_size = 0;
};

void SwiGlu(const SwiGluParams& params);
void SwiGluPlain(const SwiGluParams& params);  // the specification; float64 inside

}  // namespace tokenbutler
