#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/selection/attention_params.h"

namespace tokenbutler {

// The last decision about one KV head: which of the scored tokens to attend to. Working memory is
// kept between calls.
class ImportantTokens {
 public:
  // Takes the memory for choices of up to `count` tokens.
  void Reserve(int count);

  // Tokens in ascending order and the score of each (neighbours: of the token they came with).
  struct Choice {
    absl::Span<const int32_t> tokens;
    absl::Span<const float> scores;
  };

  // Chooses at most `count` of `tokens` (ascending, none twice) by their scores, highest first, and
  // with each its params.neighbours on both sides inside [begin, end). Stops early when the chosen
  // ones hold params.top_p of the mass that the `count` best hold together, scores being log
  // probabilities. Ties go to the lower index. The result is valid until the next call, and as
  // long as the arguments: where all are chosen, it is them.
  Choice Choose(const AttentionParams& params, absl::Span<const int32_t> tokens,
                absl::Span<const float> scores, int count, int begin, int end);

 private:
  void TakeWithNeighbours(const AttentionParams& params, absl::Span<const int32_t> tokens,
                          absl::Span<const float> scores, int count, int begin, int end);

  std::vector<int32_t> order_;  // indices into tokens, best first
  std::vector<int32_t> chosen_;
  std::vector<float> chosen_scores_;
  std::vector<std::pair<int32_t, float>> taken_;
};

}  // namespace tokenbutler
