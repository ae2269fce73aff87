#pragma once

namespace tokenbutler {

// Root mean square layer normalisation (arXiv 1910.07467, as in Llama), per row, in float32:
//   out = x / sqrt(mean(x^2) + eps) * weight
struct RmsNormParams {
  const float* x = nullptr;       // [num_rows, hidden_size]
  const float* weight = nullptr;  // [hidden_size]
  float* out = nullptr;           // [num_rows, hidden_size]; may be x
  float eps = 1e-5f;
  int num_rows = 0;
  int hidden_size = 0;
};

void RmsNorm(const RmsNormParams& params);
void RmsNormPlain(const RmsNormParams& params);  // the specification; sums in float64

// The residual connection and the norm that follows it:
//   residual += x;  out = RmsNorm(residual)
struct AddRmsNormParams {
  float* residual = nullptr;      // [num_rows, hidden_size], updated
  const float* x = nullptr;       // [num_rows, hidden_size]
  const float* weight = nullptr;  // [hidden_size]
  float* out = nullptr;           // [num_rows, hidden_size]; may be x
  float eps = 1e-5f;
  int num_rows = 0;
  int hidden_size = 0;
};

void AddRmsNorm(const AddRmsNormParams& params);
void AddRmsNormPlain(const AddRmsNormParams& params);

}  // namespace tokenbutler
