#include "engine/token_draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fast_exp.h"

namespace tokenbutler {
namespace {

using Candidate = SamplingScratch::Candidate;
using Candidates = std::vector<Candidate>;

constexpr size_t kBlock = 256;
constexpr int kLanes = 8;

bool Before(const Candidate& a, const Candidate& b) {
  if (a.key != b.key) return a.key < b.key;
  return a.token_id < b.token_id;
}

// Both walks over the weights add them up in this one way, so that they agree on the total.
double SumOfBlock(const float* weights, size_t size) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
  }
  for (; i < size; ++i) lanes[0] += weights[i];
  double sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// logits -> weights exp((logit - max) / temperature), those below `floor` -> 0. Returns their sum.
double ToWeights(absl::Span<float> logits, float max, float temperature, float floor) {
  const float scale = 1.0f / temperature;
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t size = std::min(kBlock, logits.size() - begin);
    float* block = &logits[begin];
    for (size_t i = 0; i < size; ++i) {
      const float weight = FastExp((block[i] - max) * scale);
      block[i] = weight < floor ? 0.0f : weight;
    }
    sum += SumOfBlock(block, size);
  }
  return sum;
}

int32_t DrawFromWeights(absl::Span<const float> weights, double sum, double uniform) {
  const double target = uniform * sum;
  double total = 0;
  int32_t last_possible = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const size_t size = std::min(kBlock, weights.size() - begin);
    const double block_sum = SumOfBlock(&weights[begin], size);
    if (block_sum == 0) continue;
    const bool here = total + block_sum > target;
    double running = total;
    for (size_t i = begin; i < begin + size; ++i) {
      if (weights[i] == 0) continue;
      last_possible = static_cast<int32_t>(i);
      running += weights[i];
      if (here && running > target) return last_possible;
    }
    if (here) return last_possible;  // rounding: the block's sum reached the target, the walk not
    total += block_sum;
  }
  return last_possible;
}

// The k-th largest weight. Keeps the best k in a heap: most weights only meet one comparison.
float KthLargest(absl::Span<const float> weights, size_t k, Candidates* heap) {
  const auto greater = [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; };
  heap->clear();
  for (float weight : weights) {
    if (heap->size() < k) {
      heap->push_back({weight, 0, 0});
      std::push_heap(heap->begin(), heap->end(), greater);
    } else if (weight > heap->front().weight) {
      std::pop_heap(heap->begin(), heap->end(), greater);
      heap->back().weight = weight;
      std::push_heap(heap->begin(), heap->end(), greater);
    }
  }
  return heap->front().weight;
}

// A large k would make the heap slow; then selection over a copy is linear.
float KthLargestBySelection(absl::Span<const float> weights, size_t k, Candidates* copy) {
  copy->clear();
  for (float weight : weights) copy->push_back({weight, 0, 0});
  const auto greater = [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; };
  std::nth_element(copy->begin(), copy->begin() + (k - 1), copy->end(), greater);
  return (*copy)[k - 1].weight;
}

double SumOf(const Candidates& candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

// Keeps the shortest run of candidates, in order of their keys, that weighs at least `mass`.
// Orders them piece by piece: usually a few dozens of many thousands matter.
void KeepLeading(double mass, Candidates* candidates) {
  constexpr size_t kFirstPiece = 128;
  double total = 0;
  size_t begin = 0;
  size_t piece = kFirstPiece;
  while (begin < candidates->size()) {
    const size_t end = std::min(begin + piece, candidates->size());
    const auto first = candidates->begin() + begin;
    const auto last = candidates->begin() + end;
    if (end < candidates->size()) std::nth_element(first, last, candidates->end(), Before);
    std::sort(first, last, Before);
    for (size_t i = begin; i < end; ++i) {
      total += (*candidates)[i].weight;
      if (total >= mass) {
        candidates->resize(i + 1);
        return;
      }
    }
    begin = end;
    piece *= 4;
  }
}

void KeepTopP(float top_p, Candidates* candidates) {
  const double sum = SumOf(*candidates);
  // All tokens below this share weigh less than 1 - top_p together, so none of them is kept.
  const double negligible = sum * (1.0 - top_p) / static_cast<double>(candidates->size());
  std::erase_if(*candidates, [&](const Candidate& c) { return c.weight < negligible; });
  for (Candidate& candidate : *candidates) candidate.key = -candidate.weight;
  KeepLeading(sum * top_p, candidates);
}

void KeepTypical(float typical_p, Candidates* candidates) {
  const double sum = SumOf(*candidates);
  double entropy = 0;
  for (Candidate& candidate : *candidates) {
    const double probability = candidate.weight / sum;
    candidate.key = static_cast<float>(-std::log(probability));
    entropy += probability * candidate.key;
  }
  for (Candidate& candidate : *candidates) {
    candidate.key = std::abs(candidate.key - static_cast<float>(entropy));
  }
  KeepLeading(sum * typical_p, candidates);
}

int32_t DrawFromCandidates(const Candidates& candidates, double uniform) {
  const double target = uniform * SumOf(candidates);
  double total = 0;
  for (const Candidate& candidate : candidates) {
    total += candidate.weight;
    if (total > target) return candidate.token_id;
  }
  return candidates.back().token_id;
}

}  // namespace

int32_t DrawToken(absl::Span<float> logits, float max, const SamplingParams& params, double uniform,
                  SamplingScratch* scratch) {
  const double sum = ToWeights(logits, max, params.temperature, params.min_p);
  const bool cut_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  const bool cut_p = params.top_p < 1;
  const bool cut_typical = params.typical_p < 1;
  if (!cut_k && !cut_p && !cut_typical) return DrawFromWeights(logits, sum, uniform);

  Candidates& candidates = scratch->candidates;
  candidates.reserve(logits.size());
  float floor = std::numeric_limits<float>::min();
  if (cut_k) {
    constexpr size_t kLargestHeap = 512;
    const auto k = static_cast<size_t>(params.top_k);
    floor = std::max(floor, k <= kLargestHeap ? KthLargest(logits, k, &candidates)
                                              : KthLargestBySelection(logits, k, &candidates));
  }
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor) candidates.push_back({logits[i], 0, static_cast<int32_t>(i)});
  }
  if (cut_p) KeepTopP(params.top_p, &candidates);
  if (cut_typical) KeepTypical(params.typical_p, &candidates);
  return DrawFromCandidates(candidates, uniform);
}

}  // namespace tokenbutler
