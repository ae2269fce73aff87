// The specifications of the small per-row kernels.

#include <cmath>
#include <cstddef>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/embedding.h"
#include "engine/kernels/kv_row.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/rope_append.h"
#include "engine/kernels/swiglu.h"

namespace tokenbutler {

void RmsNormPlain(const RmsNormParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const float* x = p.x + static_cast<size_t>(row) * p.hidden_size;
    float* out = p.out + static_cast<size_t>(row) * p.hidden_size;
    double sum = 0;
    for (int i = 0; i < p.hidden_size; ++i) sum += double{x[i]} * x[i];
    const double scale = 1.0 / std::sqrt(sum / p.hidden_size + p.eps);
    for (int i = 0; i < p.hidden_size; ++i) out[i] = static_cast<float>(x[i] * scale * p.weight[i]);
  }
}

void AddRmsNormPlain(const AddRmsNormParams& p) {
  const size_t num_elements = static_cast<size_t>(p.num_rows) * p.hidden_size;
  for (size_t i = 0; i < num_elements; ++i) p.residual[i] += p.x[i];
  RmsNormPlain({.x = p.residual,
                .weight = p.weight,
                .out = p.out,
                .eps = p.eps,
                .num_rows = p.num_rows,
                .hidden_size = p.hidden_size});
}

void SwiGluPlain(const SwiGluParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const float* gate = p.gate_up + static_cast<size_t>(row) * 2 * p.intermediate_size;
    const float* up = gate + p.intermediate_size;
    float* out = p.out + static_cast<size_t>(row) * p.intermediate_size;
    for (int i = 0; i < p.intermediate_size; ++i) {
      const double z = gate[i];
      out[i] = static_cast<float>(z / (1.0 + std::exp(-z)) * up[i]);
    }
  }
}

void Embedding(const EmbeddingParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const size_t from = static_cast<size_t>(p.token_ids[row]) * p.hidden_size;
    float* out = p.out + static_cast<size_t>(row) * p.hidden_size;
    for (int i = 0; i < p.hidden_size; ++i) out[i] = LoadElement(p.table, p.table_dtype, from + i);
  }
}

namespace {

void RotateHalf(float* x, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double a = x[i], b = x[i + half];
    x[i] = static_cast<float>(a * cos[i] - b * sin[i]);
    x[i + half] = static_cast<float>(b * cos[i] + a * sin[i]);
  }
}

}  // namespace

void RopeAppendPlain(const RopeAppendParams& p) {
  const KvLayout& kv = p.layout;
  const size_t row_size = (p.num_heads + size_t{2} * kv.num_kv_heads) * kv.head_dim;
  for (int r = 0; r < p.num_rows; ++r) {
    const RopeAppendParams::Row& row = p.rows[r];
    float* q = p.qkv + r * row_size;
    float* k = q + static_cast<size_t>(p.num_heads) * kv.head_dim;
    const float* v = k + static_cast<size_t>(kv.num_kv_heads) * kv.head_dim;
    for (int h = 0; h < p.num_heads + kv.num_kv_heads; ++h) {  // k follows q
      RotateHalf(q + static_cast<size_t>(h) * kv.head_dim, row.cos, row.sin, kv.head_dim);
    }
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      const size_t head = static_cast<size_t>(h) * kv.head_dim;
      StoreKvRowPlain(k + head, v + head, kv,
                      KvRowPlaceOf(kv, row.block, p.layer, h, row.row_in_block));
    }
  }
}

}  // namespace tokenbutler
