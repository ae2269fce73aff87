#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"

namespace tokenbutler {

// How a sequence chooses the cached tokens that its decode steps attend to (docs/policies.md).
enum class AttentionPolicy {
  kDense,         // all of them
  kTokenButler,   // learned predictor on projected keys (arXiv 2503.07518)
  kSketch,        // the layer's own query on low-bit keys
  kPca,           // the layer's own query on the keys' principal directions (Loki, 2406.02542)
  kQuest,         // bounds of pages (2406.10774)
  kExact,         // the true logits: what every other policy approximates
  kSnapKv,        // chosen once, by the prompt's last queries (2404.14469)
  kH2o,           // accumulated attention (2306.14048)
  kStreamingLlm,  // first and last tokens only (2309.17453)
  kXkv,           // all tokens, from a low-rank cache (2503.18893)
  kRandom,        // the floor
};

// Which query scores the cached keys.
enum class QuerySource {
  kReal,       // the layer's own, when the layer is reached
  kLookahead,  // the layer's own weights on an earlier hidden state: the producer layer's
  kMlp,        // the predictor's MLP on the producer layer's hidden state
};

// What the predictor keeps of the cached keys.
enum class KeyFormat { kProjected, kBits1, kBits2, kBits4 };

// What happens to chosen tokens that are not in the device tier.
enum class MissRule {
  kOnDemand,  // the layer waits for them
  kDeferred,  // the layer does without them; they are there at the next step
};

// The attention of one sequence: what a request may set, defaults filled in. Numbers of tokens are
// per KV head. Names follow the proto's AttentionOptions.
struct AttentionParams {
  AttentionPolicy policy = AttentionPolicy::kDense;
  int token_budget = 4096;      // attended per step: sink, local, important and neighbours
  int sink_tokens = 128;        // first tokens, always attended
  int local_window = 512;       // last tokens, always attended, the query's own included
  int prediction_interval = 1;  // decode steps between two scans of all tokens, [1, 16]
  int candidates = 0;           // kept between scans and ranked anew each step, the budget's tokens
                                // included; 0: the budget's tokens are kept as they are
  int neighbours = 0;           // also attended on each side of an important token
  float top_p = 1;              // stop choosing at this share of the predicted mass
  // Unset: as the policy has it. tokenbutler: keys projected, the predictor's own kind of query;
  // sketch: bits2, real; pca: projected, real.
  std::optional<QuerySource> query = std::nullopt;
  std::optional<KeyFormat> keys = std::nullopt;
  // Principal directions that pca keeps; what a predictor file says goes before it.
  int projected_dim = 32;
  // Below 1: every step between two scans of all tokens scans this share of the blocks, those that
  // held most of the attention at the last one. (0, 1]; 1: nothing is scanned between. Low-bit keys
  // only.
  float scan_fraction = 1;
  bool dense_first_layer = false;  // layer 0 attends to all tokens (the published method)
  MissRule misses = MissRule::kOnDemand;

  // No context is longer (--max-model-len), and sums of a few stay far from overflow.
  static constexpr int kMostTokens = 1 << 24;

  bool sparse() const { return policy != AttentionPolicy::kDense; }
  bool scores_low_bit_keys() const;
  bool operator==(const AttentionParams&) const = default;
  // Bounds that need no model. INVALID_ARGUMENT naming field ("attention.token_budget"), value and
  // bound.
  absl::Status Validate() const;

  // The same attention for a sequence that never has more than `num_tokens` tokens, in blocks of
  // `block_size`: numbers of tokens that only ask for memory are lowered. REQUIRES: valid.
  AttentionParams FittedTo(int num_tokens, int block_size) const;
};

// What a policy takes where a request leaves options unset: the defaults above, but sink tokens and
// local window as the policy's rule has them. Options that a rule has no use for are not read
// (docs/policies.md) and are set so that they forbid nothing.
AttentionParams DefaultParams(AttentionPolicy policy);

// DefaultParams(kSketch) for a device tier that is a memory of its own: a lookahead query finds
// half as many candidates again as the budget has tokens, which travel while the layer before
// computes, and the layer's own query decides among them, so that no layer waits for what only it
// can know (docs/adr/0011-choose-early-decide-late.md).
AttentionParams DefaultStagedParams();

std::string_view PolicyName(AttentionPolicy policy);  // "streaming_llm"
absl::StatusOr<AttentionPolicy> ParsePolicy(std::string_view name);
std::string_view QuerySourceName(QuerySource query);  // "real"
absl::StatusOr<QuerySource> ParseQuerySource(std::string_view name);
std::string_view KeyFormatName(KeyFormat keys);  // "bits2"
absl::StatusOr<KeyFormat> ParseKeyFormat(std::string_view name);
std::string_view MissRuleName(MissRule rule);  // "on_demand"
absl::StatusOr<MissRule> ParseMissRule(std::string_view name);

}  // namespace tokenbutler
