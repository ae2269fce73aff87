#include "engine/selection/kv_rows.h"

#include <algorithm>
#include <cstring>

namespace tokenbutler {

void KvRow::CopyFrom(const KvRow& other) const {
  const KvRowPlace from = other.place(), to = place();
  std::memcpy(to.key, from.key, layout->row_bytes());
  std::memcpy(to.value, from.value, layout->row_bytes());
  if (layout->has_scales()) std::copy_n(from.scales, KvLayout::kScalesPerToken, to.scales);
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
