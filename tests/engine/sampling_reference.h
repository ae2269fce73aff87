#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace tokenbutler {

// The sampler's specification in double precision, by full sorts; written from the definitions of
// the filters, not from engine/sampler.cc.

// logits after logit bias and penalties.
std::vector<double> ReferenceEdits(const std::vector<float>& logits, const SamplingParams& params,
                                   const std::vector<int32_t>& prompt,
                                   const std::vector<int32_t>& output);

// [vocab_size] the probability of each token to be sampled; 0 for dropped ones. Temperature > 0.
std::vector<double> ReferenceDistribution(const std::vector<float>& logits,
                                          const SamplingParams& params,
                                          const std::vector<int32_t>& prompt,
                                          const std::vector<int32_t>& output);

}  // namespace tokenbutler
