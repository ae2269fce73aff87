#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/cpu/projected_encode.h"
#include "engine/kernels/projected_keys.h"

namespace tokenbutler {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

// Of one query head and one token.
double Logit(const ProjectedScoresParams& p, const ProjectedScoresParams::Head& head, int h,
             int token) {
  const std::byte* record = head.keys.record(token / p.layout.block_size);
  double dot = 0;
  for (int c = 0; c < p.layout.dim; ++c) {
    dot += double{head.queries[h * p.layout.dim + c]} *
           ProjectedValue(p.layout, record, token % p.layout.block_size, c);
  }
  return dot * p.scale;
}

}  // namespace

void EncodeProjected(const ProjectedLayout& layout, const float* rows, std::byte* record) {
  const int dim = layout.dim;
  if (layout.format == ProjectedFormat::kBf16) {
    for (int t = 0; t < layout.block_size; ++t) {
      for (int c = 0; c < dim; ++c) {
        const BF16 value = ToBF16(rows[static_cast<size_t>(t) * dim + c]);
        std::memcpy(record + ProjectedOffset(layout, t, c), &value, sizeof(value));
      }
    }
    return;
  }
  std::memset(record, 0, layout.codes_offset());
  auto* scales = reinterpret_cast<float*>(record);
  auto* zeros = reinterpret_cast<float*>(record + layout.zeros_offset());
  float high[128];
  std::copy_n(rows, dim, zeros);
  std::copy_n(rows, dim, high);
  for (int t = 1; t < layout.block_size; ++t) {
    const float* row = rows + static_cast<size_t>(t) * dim;
    for (int c = 0; c < dim; ++c) zeros[c] = row[c] < zeros[c] ? row[c] : zeros[c];
    for (int c = 0; c < dim; ++c) high[c] = row[c] > high[c] ? row[c] : high[c];
  }
  float to_code[128];
  for (int c = 0; c < dim; ++c) {
    scales[c] = (high[c] - zeros[c]) / 255;
    if (!std::isfinite(scales[c]) || !std::isfinite(zeros[c])) scales[c] = zeros[c] = 0;
    to_code[c] = scales[c] > 0 && std::isfinite(1 / scales[c]) ? 1 / scales[c] : 0.0f;
  }
  for (int t = 0; t < layout.block_size; ++t) {
    const float* row = rows + static_cast<size_t>(t) * dim;
    for (int c = 0; c < dim; c += 4) {
      uint8_t codes[4];
      for (int i = 0; i < 4; ++i) {
        const float level = (row[c + i] - zeros[c + i]) * to_code[c + i] + 0.5f;
        // NaN compares false and becomes 0.
        codes[i] = static_cast<uint8_t>(level > 0 ? std::min(level, 255.0f) : 0.0f);
      }
      std::memcpy(record + ProjectedOffset(layout, t, c), codes, 4);
    }
  }
}

float ProjectedValue(const ProjectedLayout& layout, const std::byte* record, int token,
                     int channel) {
  const std::byte* at = record + ProjectedOffset(layout, token, channel);
  if (layout.format == ProjectedFormat::kBf16) {
    BF16 value;
    std::memcpy(&value, at, sizeof(value));
    return ToFloat(value);
  }
  const auto* scales = reinterpret_cast<const float*>(record);
  const auto* zeros = reinterpret_cast<const float*>(record + layout.zeros_offset());
  return zeros[channel] + scales[channel] * static_cast<float>(std::to_integer<int>(*at));
}

void ProjectKeysPlain(const ProjectKeysParams& p) {
  const int dim = p.layout.dim;
  for (int t = 0; t < p.layout.block_size; ++t) {
    const auto* row = static_cast<const std::byte*>(p.keys) + t * p.key_stride_bytes;
    const float scale =
        p.key_scales == nullptr ? 1.0f : p.key_scales[t * KvLayout::kScalesPerToken];
    for (int c = 0; c < dim; ++c) {
      double dot = 0;
      for (int i = 0; i < p.head_dim; ++i) {
        dot +=
            double{LoadElement(row, p.dtype, i)} * p.projection[static_cast<size_t>(i) * dim + c];
      }
      p.workspace[static_cast<size_t>(t) * dim + c] = static_cast<float>(scale * dot);
    }
  }
  EncodeProjected(p.layout, p.workspace, p.record);
}

void ProjectedScoresPlain(const ProjectedScoresParams& p) {
  for (const ProjectedScoresParams::Head& head : p.heads) {
    for (int t = head.begin; t < head.end; ++t) {
      double best = kLowest, sum = 0;
      for (int h = 0; h < p.group_size; ++h) {
        const double logit = Logit(p, head, h, t) - (head.offsets == nullptr ? 0 : head.offsets[h]);
        best = std::max(best, logit);
        sum += std::exp(logit);
      }
      head.scores[t - head.begin] =
          static_cast<float>(p.pooling == GroupPooling::kMax ? best : std::log(sum / p.group_size));
    }
  }
}

void ProjectedLogSumExpPlain(const ProjectedScoresParams& p) {
  for (const ProjectedScoresParams::Head& head : p.heads) {
    for (int h = 0; h < p.group_size; ++h) {
      std::vector<double> logits;
      for (int t = head.begin; t < head.end; ++t) logits.push_back(Logit(p, head, h, t));
      const double best =
          logits.empty() ? kLowest : *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - best);
      head.lse[h] = static_cast<float>(logits.empty() ? kLowest : best + std::log(sum));
    }
  }
}

}  // namespace tokenbutler
