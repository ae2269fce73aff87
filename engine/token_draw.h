#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/request.h"

namespace tokenbutler {

// Working memory of one thread that samples; grows to vocab_size once and is then reused by every
// sequence. Its contents mean nothing between calls.
struct SamplingScratch {
  struct Candidate {
    float weight = 0;  // proportional to the token's probability
    float key = 0;     // candidates are kept in ascending order of it
    int32_t token_id = 0;
  };
  std::vector<Candidate> candidates;
  std::vector<float> raw_logits;  // [vocab_size], the model's, kept for log-probabilities
};

// Draws a token: softmax(logits / temperature), then in this order, each on the renormalised rest:
//   min_p      drops tokens less likely than min_p times the most likely one
//   top_k      keeps the k most likely and whatever equals the k-th
//   top_p      keeps the smallest set of most likely tokens with a total of at least top_p
//              (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019)
//   typical_p  keeps the smallest set, total at least typical_p, of the tokens whose information
//              content is nearest to the entropy (Meister et al., "Locally Typical Sampling", 2022)
// Equals count as ordered by token id. `uniform` in [0, 1) picks from what is left. `max` is the
// largest of `logits` [vocab_size]; `logits` is overwritten.
// REQUIRES: no NaN or +Inf; max finite; temperature > 0; other parameters in their bounds.
int32_t DrawToken(absl::Span<float> logits, float max, const SamplingParams& params, double uniform,
                  SamplingScratch* scratch);

}  // namespace tokenbutler
