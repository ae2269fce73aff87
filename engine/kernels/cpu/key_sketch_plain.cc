#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/cpu/sketch_codes.h"
#include "engine/kernels/key_sketch.h"

namespace tokenbutler {
namespace {

float KeyElement(const SketchKeysParams& p, int token, int channel) {
  const auto* row = static_cast<const std::byte*>(p.keys) + token * p.key_stride_bytes;
  const float element = LoadElement(row, p.dtype, channel);
  return p.key_scales == nullptr ? element
                                 : p.key_scales[token * KvLayout::kScalesPerToken] * element;
}

// The code from 0 to max_code nearest to x; 0 for NaN.
int NearestCode(float x, int max_code) {
  return x > 0 ? static_cast<int>(std::nearbyint(std::min(x, static_cast<float>(max_code)))) : 0;
}

// 1 / x, and 0 where there is nothing to divide: the channel is constant or not finite.
float Reciprocal(float x) { return x > 0 && std::isfinite(1 / x) ? 1 / x : 0.0f; }

// Moves the levels from `low` to `high` to where they fit the channel's keys better.
void FitLevels(const SketchKeysParams& p, int channel, float* low, float* high) {
  const float num_tokens = static_cast<float>(p.layout.block_size);
  const float num_steps = static_cast<float>(p.layout.levels());
  for (int fit = 0; fit < kSketchFits; ++fit) {
    const float to_code = Reciprocal((*high - *low) / num_steps);
    float codes = 0, squares = 0, above = 0, products = 0;  // sums over the tokens
    for (int t = 0; t < p.layout.block_size; ++t) {
      const float x = KeyElement(p, t, channel) - *low;
      const float code = static_cast<float>(NearestCode(x * to_code, p.layout.levels()));
      codes += code;
      squares += code * code;
      above += x;
      products += code * x;
    }
    const float spread = num_tokens * squares - codes * codes;
    if (!(spread > 0)) return;
    const float scale = (num_tokens * products - codes * above) / spread;
    *low += (above - scale * codes) / num_tokens;
    *high = *low + scale * num_steps;
  }
}

// Sets one channel's scale and zero.
void ChooseLevels(const SketchKeysParams& p, int channel) {
  const SketchLayout& layout = p.layout;
  float low = std::numeric_limits<float>::infinity(), high = -low, sum = 0, deviations = 0;
  for (int t = 0; t < layout.block_size; ++t) {
    const float key = KeyElement(p, t, channel);
    low = std::min(low, key);
    high = std::max(high, key);
    sum += key;
  }
  if (layout.bits == 1) {
    const float mean = sum / layout.block_size;
    for (int t = 0; t < layout.block_size; ++t) {
      deviations += std::abs(KeyElement(p, t, channel) - mean);
    }
    low = mean - deviations / layout.block_size;
    high = mean + deviations / layout.block_size;
  }
  if (layout.bits == 2) FitLevels(p, channel, &low, &high);
  float scale = (high - low) / layout.levels();
  if (!std::isfinite(scale) || !std::isfinite(low)) scale = low = 0;
  auto* scales = reinterpret_cast<BF16*>(p.record + layout.scales_offset());
  auto* zeros = reinterpret_cast<BF16*>(p.record + layout.zeros_offset());
  scales[channel] = ToBF16(scale);
  zeros[channel] = ToBF16(low);
}

float Dot(const float* query, const SketchLayout& layout, const std::byte* record, int token) {
  float dot = 0;
  for (int c = 0; c < layout.head_dim; ++c) {
    dot += query[c] * (SketchZero(layout, record, c) +
                       SketchScale(layout, record, c) * SketchCode(layout, record, token, c));
  }
  return dot;
}

// max_h (softmax_scale * logit(query of h) - lse[h])
template <typename Logit>
float Pooled(const SketchScoresParams& p, const SketchScoresParams::Head& head,
             const Logit& logit) {
  float best = -std::numeric_limits<float>::infinity();
  for (int h = 0; h < p.group_size; ++h) {
    const float lse = head.lse == nullptr ? 0.0f : head.lse[h];
    best = std::max(best, p.softmax_scale * logit(head.queries + h * p.layout.head_dim) - lse);
  }
  return best;
}

}  // namespace

bool SketchLayout::IsValid() const {
  return head_dim >= 16 && head_dim <= 256 && head_dim % 16 == 0 && block_size >= 16 &&
         block_size <= kMaxBlockSize && block_size % 16 == 0 &&
         (bits == 1 || bits == 2 || bits == 4);
}

void SketchKeysPlain(const SketchKeysParams& p) {
  const SketchLayout& layout = p.layout;
  std::memset(p.record, 0, layout.record_bytes());
  for (int c = 0; c < layout.head_dim; ++c) {
    ChooseLevels(p, c);
    const float to_code = Reciprocal(SketchScale(layout, p.record, c));
    const float zero = SketchZero(layout, p.record, c);
    for (int t = 0; t < layout.block_size; ++t) {
      const SketchCodePlace place = PlaceOfCode(layout, t, c);
      const int code = NearestCode((KeyElement(p, t, c) - zero) * to_code, layout.levels());
      p.record[place.byte] |= static_cast<std::byte>(code << place.shift);
    }
  }
}

void SketchScoresPlain(const SketchScoresParams& p) {
  for (const SketchScoresParams::Head& head : p.heads) {
    for (int t = head.begin; t < head.end; ++t) {
      const std::byte* record = head.keys.record(p.layout, t / p.layout.block_size);
      head.scores[t - head.begin] = Pooled(p, head, [&](const float* query) {
        return Dot(query, p.layout, record, t % p.layout.block_size);
      });
    }
  }
}

}  // namespace tokenbutler
