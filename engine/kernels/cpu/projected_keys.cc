#include "engine/kernels/projected_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/fast_exp.h"
#include "engine/kernels/cpu/projected_encode.h"
#include "engine/kernels/cpu/projected_logits.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/projected_keys.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/dot_tile-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Tokens [token, token + kTokens) times the projection. REQUIRES: dim is a multiple of 16.
template <int kTokens, class Element>
HWY_INLINE void ProjectTokens(const ProjectKeysParams& p, int token) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int dim = p.layout.dim;
  const Element* keys[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    keys[t] = reinterpret_cast<const Element*>(static_cast<const std::byte*>(p.keys) +
                                               (token + t) * p.key_stride_bytes);
  }
  for (int c = 0; c < dim; c += lanes) {
    FloatVec sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = hn::Zero(d);
    for (int i = 0; i < p.head_dim; ++i) {
      const FloatVec row = hn::LoadU(d, p.projection + static_cast<size_t>(i) * dim + c);
      for (int t = 0; t < kTokens; ++t) {
        sums[t] = hn::MulAdd(hn::Set(d, LoadFloat(keys[t] + i)), row, sums[t]);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (kHasScale<Element>) {
        const float scale = p.key_scales[(token + t) * KvLayout::kScalesPerToken];
        sums[t] = hn::Mul(sums[t], hn::Set(d, scale));
      }
      hn::StoreU(sums[t], d, p.workspace + static_cast<size_t>(token + t) * dim + c);
    }
  }
}

template <class Element>
void ProjectBlock(const ProjectKeysParams& p) {
  for (int t = 0; t < p.layout.block_size; t += 8) ProjectTokens<8, Element>(p, t);
}

void ProjectRows(const ProjectKeysParams& p) {
  WithElementType(p.dtype, [&](auto element) { ProjectBlock<decltype(element)>(p); });
}

// Adds kHeads heads' products with one vector of lanes of one sub-block.
template <int kHeads, ProjectedFormat kFormat>
HWY_INLINE void LaneLogits(const ProjectedScoresParams& p, const PreparedQueries& prepared,
                           int head, const std::byte* codes, FloatVec* logits) {
  const FloatTag d;
  const hn::Rebind<int32_t, FloatTag> di;
  const hn::Rebind<uint32_t, FloatTag> du;
  const int dim = p.layout.dim;
  const float* weights = prepared.weights + static_cast<size_t>(head) * dim;
  for (int h = 0; h < kHeads; ++h) logits[h] = hn::Set(d, prepared.base[head + h]);
  const auto add = [&](FloatVec values, int channel) HWY_ATTR {
    for (int h = 0; h < kHeads; ++h) {
      logits[h] = hn::MulAdd(hn::Set(d, weights[h * dim + channel]), values, logits[h]);
    }
  };
  for (int i = 0; i < p.layout.lines(); ++i) {
    const auto line =
        hn::LoadU(du, reinterpret_cast<const uint32_t*>(codes + static_cast<size_t>(i) * 64));
    if constexpr (kFormat == ProjectedFormat::kBf16) {
      add(hn::BitCast(d, hn::ShiftLeft<16>(line)), 2 * i);
      add(hn::BitCast(d, hn::And(line, hn::Set(du, 0xffff0000u))), 2 * i + 1);
    } else {
      const auto low_byte = hn::Set(du, 0xffu);
      const auto number = [&](auto bits)
                              HWY_ATTR { return hn::ConvertTo(d, hn::BitCast(di, bits)); };
      add(number(hn::And(line, low_byte)), 4 * i);
      add(number(hn::And(hn::ShiftRight<8>(line), low_byte)), 4 * i + 1);
      add(number(hn::And(hn::ShiftRight<16>(line), low_byte)), 4 * i + 2);
      add(number(hn::ShiftRight<24>(line)), 4 * i + 3);
    }
  }
}

template <int kHeads, ProjectedFormat kFormat>
HWY_INLINE void HeadLogits(const ProjectedScoresParams& p, const PreparedQueries& prepared,
                           int head, const std::byte* record, int first, int last, bool want_max,
                           float* out) {
  const FloatTag d;
  const int lanes = std::min(static_cast<int>(hn::Lanes(d)), 16);
  const size_t sub_bytes = p.layout.sub_block_bytes();
  for (int s = first; s < last; ++s) {
    const std::byte* codes = record + p.layout.codes_offset() + s * sub_bytes;
    for (int lane = 0; lane < 16; lane += lanes) {
      FloatVec logits[kHeads];
      LaneLogits<kHeads, kFormat>(p, prepared, head, codes + 4 * lane, logits);
      float* row = out + (s - first) * 16 + lane;
      if (!want_max) {
        for (int h = 0; h < kHeads; ++h) {
          hn::StoreU(logits[h], d, row + static_cast<size_t>(head + h) * (last - first) * 16);
        }
        continue;
      }
      FloatVec best = logits[0];
      for (int h = 1; h < kHeads; ++h) best = hn::Max(best, logits[h]);
      if (head > 0) best = hn::Max(best, hn::LoadU(d, row));
      hn::StoreU(best, d, row);
    }
  }
}

template <ProjectedFormat kFormat>
HWY_INLINE void GroupLogits(const ProjectedScoresParams& p, const PreparedQueries& prepared,
                            const std::byte* record, int first, int last, bool want_max,
                            float* out) {
  int h = 0;
  for (; h + 4 <= p.group_size; h += 4) {
    HeadLogits<4, kFormat>(p, prepared, h, record, first, last, want_max, out);
  }
  const int left = p.group_size - h;
  if (left == 3) HeadLogits<3, kFormat>(p, prepared, h, record, first, last, want_max, out);
  if (left == 2) HeadLogits<2, kFormat>(p, prepared, h, record, first, last, want_max, out);
  if (left == 1) HeadLogits<1, kFormat>(p, prepared, h, record, first, last, want_max, out);
}

// As ByteDotLogits, by floating point.
void FloatLogits(const ProjectedScoresParams& p, const PreparedQueries& prepared,
                 const std::byte* record, int first, int last, bool want_max, float* out) {
  if (p.layout.format == ProjectedFormat::kBf16) {
    GroupLogits<ProjectedFormat::kBf16>(p, prepared, record, first, last, want_max, out);
  } else {
    GroupLogits<ProjectedFormat::kInt8>(p, prepared, record, first, last, want_max, out);
  }
}

// log(x) for normal x > 0, to 2e-7 absolute near 1: x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
// log m = 2 artanh((m - 1) / (m + 1)).
HWY_INLINE float FastLog(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t shifted = bits - 0x3f3504f3u;
  const float exponent = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  bits = (shifted & 0x007fffffu) + 0x3f3504f3u;
  float m;
  std::memcpy(&m, &bits, sizeof(m));
  const float s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  const float series =
      s * (2.0f + s2 * (2.0f / 3 + s2 * (2.0f / 5 + s2 * (2.0f / 7 + s2 * 2.0f / 9))));
  return exponent * 0.69314718f + series;
}

// scores[t] = log mean_h exp(logits[h][t]). `logits` [group_size, n] are overwritten.
void PoolMeanExp(float* logits, int group_size, int n, float* scores) {
  std::copy_n(logits, n, scores);
  for (int h = 1; h < group_size; ++h) {
    const float* row = logits + static_cast<size_t>(h) * n;
    for (int t = 0; t < n; ++t) scores[t] = scores[t] > row[t] ? scores[t] : row[t];
  }
  for (int h = 0; h < group_size; ++h) {
    float* row = logits + static_cast<size_t>(h) * n;
    for (int t = 0; t < n; ++t) row[t] = FastExp(row[t] - scores[t]);
    if (h == 0) continue;
    for (int t = 0; t < n; ++t) logits[t] += row[t];
  }
  const float mean = 1.0f / static_cast<float>(group_size);
  for (int t = 0; t < n; ++t) scores[t] += FastLog(logits[t] * mean);
}

// Takes `n` more logits into a running maximum and sum of exponentials.
void AddExp(const float* logits, int n, float* max, float* sum) {
  float highest = logits[0];
  for (int t = 1; t < n; ++t) highest = logits[t] > highest ? logits[t] : highest;
  if (highest > *max) {
    *sum *= FastExp(*max - highest);
    *max = highest;
  }
  float sums[16] = {};
  int t = 0;
  for (; t + 16 <= n; t += 16) {
    for (int i = 0; i < 16; ++i) sums[i] += FastExp(logits[t + i] - *max);
  }
  for (; t < n; ++t) sums[0] += FastExp(logits[t] - *max);
  for (int i = 0; i < 16; ++i) *sum += sums[i];
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(ProjectRows);
HWY_EXPORT(FloatLogits);
HWY_EXPORT(PoolMeanExp);
HWY_EXPORT(AddExp);

namespace {

using Head = ProjectedScoresParams::Head;

constexpr int kSub = ProjectedLayout::kSubBlockTokens;
constexpr int kPieceSubBlocks = 8;  // whose logits are buffered at a time
constexpr int kTokensPerTask = 8192;
constexpr int kRecordsAhead = 2;  // fetched while one is read

int BlocksPerTask(const ProjectedLayout& layout) {
  return std::max(1, kTokensPerTask / layout.block_size);
}

int NumTasks(const ProjectedLayout& layout, const Head& head) {
  if (head.begin >= head.end) return 0;
  const int blocks = (head.end - 1) / layout.block_size - head.begin / layout.block_size + 1;
  return (blocks + BlocksPerTask(layout) - 1) / BlocksPerTask(layout);
}

int NumTasks(const ProjectedScoresParams& p) {
  int num_tasks = 0;
  for (const Head& head : p.heads) num_tasks += NumTasks(p.layout, head);
  return num_tasks;
}

// The head that a task belongs to, and which of its tasks it is.
std::pair<const Head*, int> FindTask(const ProjectedScoresParams& p, int task) {
  size_t at = 0;
  while (task >= NumTasks(p.layout, p.heads[at])) task -= NumTasks(p.layout, p.heads[at++]);
  return {&p.heads[at], task};
}

// weights, base and step for floating point.
void PrepareFloat(const ProjectedScoresParams& p, const Head& head, const std::byte* record,
                  PreparedQueries* prepared) {
  const int dim = p.layout.dim;
  const bool has_levels = p.layout.format == ProjectedFormat::kInt8;
  const auto* scales = reinterpret_cast<const float*>(record);
  const auto* zeros = reinterpret_cast<const float*>(record + p.layout.zeros_offset());
  for (int h = 0; h < p.group_size; ++h) {
    const float* query = head.queries + static_cast<size_t>(h) * dim;
    float* weights = prepared->weights + static_cast<size_t>(h) * dim;
    float base = 0;
    for (int c = 0; c < dim; ++c) {
      const float q = p.scale * query[c];
      weights[c] = has_levels ? q * scales[c] : q;
      if (has_levels) base += q * zeros[c];
    }
    prepared->base[h] = base - (head.offsets == nullptr ? 0.0f : head.offsets[h]);
    prepared->step[h] = 1;
  }
}

// Calls take(first token, number of tokens, logits) for each piece of one task's tokens, logits
// being [number] maxima over the heads or [group_size, stride] each head's, of which the first
// `skip` of a row are of earlier tokens.
template <class Take>
void ForEachPiece(const ProjectedScoresParams& p, const Head& head, int task, bool want_max,
                  const Take& take) {
  const ProjectedLayout& layout = p.layout;
  const bool byte_dot =
      layout.format == ProjectedFormat::kInt8 && layout.dim % 16 == 0 && HasByteDot();
  const int last_block = (head.end - 1) / layout.block_size;
  const int first_block = head.begin / layout.block_size + task * BlocksPerTask(layout);
  const int end_block = std::min(first_block + BlocksPerTask(layout), last_block + 1);
  PreparedQueries prepared;
  alignas(64) float logits[PreparedQueries::kMaxHeads * kPieceSubBlocks * kSub];
  for (int b = first_block; b < end_block; ++b) {
    const std::byte* record = head.keys.record(b);
    const std::byte* next = head.keys.record(std::min(b + kRecordsAhead, last_block));
    if (byte_dot) {
      PrepareByteDot(p, head, record, &prepared);
    } else if (b == first_block || layout.format == ProjectedFormat::kInt8) {
      PrepareFloat(p, head, record, &prepared);
    }
    const int block_begin = b * layout.block_size;
    const int begin = std::max(head.begin, block_begin);
    const int end = std::min(head.end, block_begin + layout.block_size);
    const int last_sub = (end - block_begin + kSub - 1) / kSub;
    for (int s = (begin - block_begin) / kSub; s < last_sub; s += kPieceSubBlocks) {
      const int e = std::min(s + kPieceSubBlocks, last_sub);
      if (byte_dot) {
        ByteDotLogits(p, prepared, record, next, s, e, want_max, logits);
      } else {
        HWY_DYNAMIC_DISPATCH(FloatLogits)(p, prepared, record, s, e, want_max, logits);
      }
      const int piece_begin = block_begin + s * kSub;
      const int from = std::max(begin, piece_begin), to = std::min(end, block_begin + e * kSub);
      take(from, to - from, logits, (e - s) * kSub, from - piece_begin);
    }
  }
}

}  // namespace

void ProjectKeys(const ProjectKeysParams& p) {
  if (p.layout.dim % 16 != 0) return ProjectKeysPlain(p);
  HWY_DYNAMIC_DISPATCH(ProjectRows)(p);
  EncodeProjected(p.layout, p.workspace, p.record);
}

void ProjectedScores(const ProjectedScoresParams& p, ComputePool& pool) {
  const bool want_max = p.pooling == GroupPooling::kMax || p.group_size == 1;
  pool.ParallelFor(NumTasks(p), [&](int task_of_all) {
    const auto [head, task] = FindTask(p, task_of_all);
    float* scores = head->scores - head->begin;
    ForEachPiece(p, *head, task, want_max,
                 [&, scores](int first, int n, float* logits, int stride, int skip) {
                   if (want_max) {
                     std::copy_n(logits + skip, n, scores + first);
                     return;
                   }
                   float pooled[kPieceSubBlocks * kSub];
                   HWY_DYNAMIC_DISPATCH(PoolMeanExp)(logits, p.group_size, stride, pooled);
                   std::copy_n(pooled + skip, n, scores + first);
                 });
  });
}

size_t ProjectedWorkspaceFloats(const ProjectedScoresParams& p) {
  return static_cast<size_t>(NumTasks(p)) * p.group_size * 2;
}

void ProjectedLogSumExp(const ProjectedScoresParams& p, ComputePool& pool) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int group = p.group_size;
  pool.ParallelFor(NumTasks(p), [&](int task_of_all) {
    const auto [head, task] = FindTask(p, task_of_all);
    float* max = p.workspace + static_cast<size_t>(task_of_all) * group * 2;
    float* sum = max + group;
    std::fill_n(max, group, kLowest);
    std::fill_n(sum, group, 0.0f);
    Head raw = *head;
    raw.offsets = nullptr;
    ForEachPiece(p, raw, task, /*want_max=*/false,
                 [&](int, int n, const float* logits, int stride, int skip) {
                   for (int h = 0; h < group; ++h) {
                     HWY_DYNAMIC_DISPATCH(AddExp)
                     (logits + static_cast<size_t>(h) * stride + skip, n, max + h, sum + h);
                   }
                 });
  });
  // In the order of the tokens, whichever thread was first.
  const float* part = p.workspace;
  for (const Head& head : p.heads) {
    const int num_parts = NumTasks(p.layout, head);
    for (int h = 0; h < group; ++h) {
      float best = kLowest;
      for (int i = 0; i < num_parts; ++i) best = std::max(best, part[i * 2 * group + h]);
      double sum = 0;
      for (int i = 0; i < num_parts; ++i) {
        const float* at = part + static_cast<size_t>(i) * 2 * group;
        sum += double{at[group + h]} * std::exp(double{at[h]} - best);
      }
      head.lse[h] = num_parts == 0 ? kLowest : best + static_cast<float>(std::log(sum));
    }
    part += static_cast<size_t>(num_parts) * 2 * group;
  }
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
