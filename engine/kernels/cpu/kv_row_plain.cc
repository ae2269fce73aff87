#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/kv_row.h"

namespace tokenbutler {
namespace {

// The scale.
float StoreInt8(const float* x, int head_dim, int8_t* codes) {
  float max = 0;
  bool finite = true;
  for (int i = 0; i < head_dim; ++i) {
    finite &= std::isfinite(x[i]);
    max = std::max(max, std::abs(x[i]));
  }
  const float inverse = 127.0f / max;
  const bool zeros = !finite || max < kLeastInt8Max;
  for (int i = 0; i < head_dim; ++i) {
    codes[i] = static_cast<int8_t>(zeros ? 0.0f : std::nearbyint(x[i] * inverse));
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return zeros ? 0.0f : max / 127.0f;
}

void StoreRow(const float* x, const KvLayout& layout, std::byte* row, float* scale) {
  if (scale != nullptr) {
    *scale = StoreInt8(x, layout.head_dim, reinterpret_cast<int8_t*>(row));
    return;
  }
  for (int i = 0; i < layout.head_dim; ++i) StoreElement(row, layout.dtype, i, x[i]);
}

}  // namespace

void LoadKvRowsPlain(const KvRows& rows, const KvLayout& layout, int num_rows, float* out) {
  for (int r = 0; r < num_rows; ++r) {
    const float scale = rows.scales == nullptr ? 1.0f : rows.scales[r * KvLayout::kScalesPerToken];
    for (int i = 0; i < layout.head_dim; ++i) {
      const size_t at = static_cast<size_t>(r) * layout.head_dim + i;
      out[at] = scale * LoadElement(rows.data, layout.dtype, at);
    }
  }
}

void StoreKvRowPlain(const float* key, const float* value, const KvLayout& layout,
                     const KvRowPlace& place) {
  StoreRow(key, layout, place.key, place.scales);
  StoreRow(value, layout, place.value, place.scales == nullptr ? nullptr : place.scales + 1);
}

}  // namespace tokenbutler
