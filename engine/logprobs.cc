#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/fast_exp.h"
#include "base/status.h"

namespace tokenbutler {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Lanes that the compiler keeps in vector registers; a plain reduction over floats it may not
// reorder.
constexpr int kLanes = 16;
constexpr size_t kBlock = 512;

struct BlockPeak {
  float value = -kInfinity;
  bool valid = true;  // no NaN, no +Inf
};

BlockPeak PeakOfBlock(const float* logits, size_t size) {
  float peaks[kLanes];
  int invalid[kLanes] = {};
  std::fill_n(peaks, kLanes, -kInfinity);
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      peaks[lane] = x > peaks[lane] ? x : peaks[lane];
      invalid[lane] |= !(x < kInfinity);
    }
  }
  BlockPeak result;
  for (; i < size; ++i) {
    result.value = std::max(result.value, logits[i]);
    result.valid &= logits[i] < kInfinity;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    result.value = std::max(result.value, peaks[lane]);
    result.valid &= invalid[lane] == 0;
  }
  return result;
}

absl::Status InvalidLogitError(absl::Span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < kInfinity)) {
      return InternalError("logits[{}] is {}, must be below infinity", i, logits[i]);
    }
  }
  return absl::OkStatus();
}

bool MoreLikely(const TokenLogprob& a, const TokenLogprob& b) {
  if (a.logprob != b.logprob) return a.logprob > b.logprob;
  return a.token_id < b.token_id;
}

}  // namespace

absl::StatusOr<LogitPeak> FindPeak(absl::Span<const float> logits) {
  size_t best_begin = 0;
  float best = -kInfinity;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const BlockPeak peak = PeakOfBlock(&logits[begin], std::min(kBlock, logits.size() - begin));
    if (!peak.valid) return InvalidLogitError(logits);
    if (peak.value > best) {
      best = peak.value;
      best_begin = begin;
    }
  }
  const auto* token = std::find(logits.begin() + best_begin, logits.end(), best);
  return LogitPeak{static_cast<int32_t>(token - logits.begin()), best};
}

float LogSumExp(absl::Span<const float> logits, float max) {
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, logits.size());
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += FastExp(logits[i + lane] - max);
    }
    for (; i < end; ++i) lanes[0] += FastExp(logits[i] - max);
    for (float lane : lanes) sum += lane;
  }
  return max + static_cast<float>(std::log(sum));
}

TokenLogprob LogprobOf(absl::Span<const float> logits, float lse, int32_t token_id) {
  const float logit = logits[token_id];
  int more_likely = 0;
  for (float other : logits) more_likely += other > logit;
  return {token_id, logit - lse, more_likely + 1};
}

void TopLogprobs(absl::Span<const float> logits, float lse, int k, std::vector<TokenLogprob>* top) {
  top->clear();
  if (k <= 0) return;
  // A heap with the least likely of the best k in front; most logits only meet one comparison.
  for (size_t i = 0; i < logits.size(); ++i) {
    const TokenLogprob entry{static_cast<int32_t>(i), logits[i], 0};
    if (top->size() < static_cast<size_t>(k)) {
      top->push_back(entry);
      std::push_heap(top->begin(), top->end(), MoreLikely);
    } else if (MoreLikely(entry, top->front())) {
      std::pop_heap(top->begin(), top->end(), MoreLikely);
      top->back() = entry;
      std::push_heap(top->begin(), top->end(), MoreLikely);
    }
  }
  std::sort_heap(top->begin(), top->end(), MoreLikely);
  for (size_t i = 0; i < top->size(); ++i) {
    (*top)[i].logprob -= lse;
    (*top)[i].rank = static_cast<int>(i) + 1;
  }
}

absl::StatusOr<PositionLogprobs> ComputeLogprobs(absl::Span<const float> logits, int32_t token_id,
                                                 int top) {
  ASSIGN_OR_RETURN(const LogitPeak peak, FindPeak(logits));
  if (peak.value == -kInfinity) return InternalError("every logit is -inf, one must be finite");
  const float lse = LogSumExp(logits, peak.value);
  PositionLogprobs result;
  result.chosen = LogprobOf(logits, lse, token_id);
  TopLogprobs(logits, lse, top, &result.top);
  return result;
}

}  // namespace tokenbutler
