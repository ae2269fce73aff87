#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/request.h"
#include "engine/token_draw.h"
#include "engine/token_sink.h"

namespace tokenbutler {

struct SampledToken {
  int32_t token_id = 0;
  // Only set when log-probabilities were asked for. `top` belongs to the Sampler and is valid until
  // its next Sample().
  std::optional<TokenLogprob> chosen;
  absl::Span<const TokenLogprob> top;
};

struct SamplerOptions {
  SamplingParams params;
  uint64_t seed = 0;  // params.seed or the engine's draw
  int index = 0;      // which of the params.n completions
  int vocab_size = 0;
  // Tokens that would end the sequence (EOS unless ignored, stop token ids): suppressed while fewer
  // than params.min_tokens tokens were sampled.
  std::vector<int32_t> stop_token_ids;
  std::optional<int> top_logprobs;  // LogprobParams::top
};

// Turns one sequence's logits into its next token. Owned by the sequence, used by one thread at a
// time; it remembers what was sampled. Each step goes, in this order (vLLM's):
//   log-probabilities of the untouched logits; logit bias; min_tokens; repetition penalty (prompt
//   and output), frequency and presence penalty (output); then, at temperature 0, the most likely
//   token (lowest id among equals), else temperature, min-p, top-k, top-p, typical, one draw.
// The draw depends on (seed, index, number of tokens sampled so far) only.
class Sampler {
 public:
  // Below this a temperature counts as 0 (greedy), as in vLLM: dividing by it overflows.
  static constexpr float kGreedyTemperature = 1e-5f;

  // `prompt` is only read during the call. INVALID_ARGUMENT naming the field for a token id outside
  // the vocabulary or a parameter outside the bounds of engine/request.h.
  static absl::StatusOr<Sampler> Create(SamplerOptions options, absl::Span<const int32_t> prompt);

  // Samples and remembers the next token. `logits` [vocab_size] float32 is overwritten.
  // Linear in vocab_size; allocates nothing once `scratch` has grown.
  // INTERNAL when a logit is NaN or +Inf or none is finite; INVALID_ARGUMENT when min_tokens
  // suppresses every token. After an error the Sampler is unchanged.
  absl::StatusOr<SampledToken> Sample(absl::Span<float> logits, SamplingScratch* scratch);

  int64_t num_sampled() const { return num_sampled_; }
  uint64_t seed() const { return options_.seed; }

 private:
  Sampler(SamplerOptions options, absl::Span<const int32_t> prompt);

  bool greedy() const { return options_.params.temperature < kGreedyTemperature; }
  bool suppresses_stops() const { return num_sampled_ < options_.params.min_tokens; }
  // True when this step changes logits before the draw.
  bool edits_logits() const;
  void EditLogits(absl::Span<float> logits) const;
  void Penalize(absl::Span<float> logits) const;
  void Remember(int32_t token_id);

  SamplerOptions options_;
  int64_t num_sampled_ = 0;
  std::vector<uint64_t> seen_;          // bit per token id, in prompt or output; empty: no penalty
  std::vector<int32_t> output_counts_;  // [vocab_size] times sampled; empty: no penalty
  std::vector<TokenLogprob> top_logprobs_;
};

}  // namespace tokenbutler
