#include "engine/selection/kv_rows.h"

#include <cstring>

#include "engine/kernels/linear.h"

namespace tokenbutler {

void LoadRow(const std::byte* row, const KvLayout& layout, float* out) {
  for (int i = 0; i < layout.head_dim; ++i) {
    switch (layout.dtype) {
      case DType::kBF16:
        out[i] = ToFloat(reinterpret_cast<const BF16*>(row)[i]);
        break;
      case DType::kF16:
        out[i] = HalfToFloat(reinterpret_cast<const uint16_t*>(row)[i]);
        break;
      default:
        out[i] = reinterpret_cast<const float*>(row)[i];
    }
  }
}

void StoreRow(const float* values, const KvLayout& layout, std::byte* row) {
  switch (layout.dtype) {
    case DType::kBF16:
      return RoundToBf16(values, layout.head_dim, reinterpret_cast<BF16*>(row));
    case DType::kF16:
      for (int i = 0; i < layout.head_dim; ++i) {
        reinterpret_cast<uint16_t*>(row)[i] = FloatToHalf(values[i]);
      }
      return;
    default:
      std::memcpy(row, values, layout.row_bytes());
  }
}

void Rotate(const float* cos_sin, const Rope& rope, float* x) {
  const int half = rope.half_dim();
  for (int i = 0; i < half; ++i) {
    const float cos = cos_sin[i], sin = cos_sin[half + i];
    const float a = x[i], b = x[half + i];
    x[i] = a * cos - b * sin;
    x[half + i] = b * cos + a * sin;
  }
}

void RotateBack(const float* cos_sin, const Rope& rope, float* x) {
  const int half = rope.half_dim();
  // Cosine and sine have the factor once each, and so has x.
  const float scale = 1.0f / (rope.attention_factor() * rope.attention_factor());
  for (int i = 0; i < half; ++i) {
    const float cos = cos_sin[i], sin = cos_sin[half + i];
    const float a = x[i], b = x[half + i];
    x[i] = scale * (a * cos + b * sin);
    x[half + i] = scale * (b * cos - a * sin);
  }
}

}  // namespace tokenbutler
