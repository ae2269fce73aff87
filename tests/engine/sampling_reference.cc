#include "tests/engine/sampling_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

namespace tokenbutler {
namespace {

using Distribution = std::vector<double>;

void Normalize(Distribution* p) {
  const double sum = std::accumulate(p->begin(), p->end(), 0.0);
  for (double& value : *p) value /= sum;
}

// Token ids with probability, ascending by `rank`, then by id.
std::vector<int> Ordered(const Distribution& p, const std::function<double(int)>& rank) {
  std::vector<int> ids;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) ids.push_back(static_cast<int>(i));
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return rank(a) < rank(b); });
  return ids;
}

// A token stays when those before it in `ids` do not yet have `mass`.
void KeepUntil(double mass, const std::vector<int>& ids, Distribution* p) {
  double before = 0;
  for (int id : ids) {
    const double own = (*p)[id];
    if (before >= mass) (*p)[id] = 0;
    before += own;
  }
  Normalize(p);
}

}  // namespace

std::vector<double> ReferenceEdits(const std::vector<float>& logits, const SamplingParams& params,
                                   const std::vector<int32_t>& prompt,
                                   const std::vector<int32_t>& output) {
  std::vector<double> edited(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) edited[id] += bias;
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(output.begin(), output.end());
  for (int32_t id : seen) {
    edited[id] = edited[id] > 0 ? edited[id] / params.repetition_penalty
                                : edited[id] * params.repetition_penalty;
  }
  for (int32_t id : output) edited[id] -= params.frequency_penalty;
  for (int32_t id : std::set<int32_t>(output.begin(), output.end())) {
    edited[id] -= params.presence_penalty;
  }
  return edited;
}

std::vector<double> ReferenceDistribution(const std::vector<float>& logits,
                                          const SamplingParams& params,
                                          const std::vector<int32_t>& prompt,
                                          const std::vector<int32_t>& output) {
  Distribution p = ReferenceEdits(logits, params, prompt, output);
  const double max = *std::max_element(p.begin(), p.end());
  for (double& value : p) value = std::exp((value - max) / params.temperature);
  Normalize(&p);

  const double most_likely = *std::max_element(p.begin(), p.end());
  for (double& value : p) {
    if (value < params.min_p * most_likely * (1 - 1e-9)) value = 0;
  }
  Normalize(&p);
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < p.size()) {
    Distribution sorted = p;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth = sorted[params.top_k - 1];
    for (double& value : p) {
      if (value < kth) value = 0;
    }
    Normalize(&p);
  }
  if (params.top_p < 1) {
    KeepUntil(params.top_p, Ordered(p, [&](int id) { return -p[id]; }), &p);
  }
  if (params.typical_p < 1) {
    double entropy = 0;
    for (double value : p) {
      if (value > 0) entropy -= value * std::log(value);
    }
    const auto surprise = [&, q = p](int id) { return std::abs(-std::log(q[id]) - entropy); };
    KeepUntil(params.typical_p, Ordered(p, surprise), &p);
  }
  return p;
}

}  // namespace tokenbutler
