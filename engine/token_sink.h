#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/attention_probes.h"
#include "engine/attention_stats.h"

namespace tokenbutler {

enum class FinishReason { kEos, kStopString, kStopToken, kLength, kContextLength, kCancelled };

struct PrefillProgress {
  int total_tokens = 0;  // to prefill
  int cached_tokens = 0;
  int processed_tokens = 0;
  absl::Duration elapsed;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;  // natural log, of the model's distribution before sampling parameters
  int rank = 0;       // 1 = most likely
};

// One position's log-probabilities: the token that stands there, then the best `top` ones.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

struct OutputChunk {
  int index = 0;     // which of the n completions
  std::string text;  // whole UTF-8, possibly empty when only ids are asked for
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;
};

struct FinishedOutput {
  int index = 0;
  FinishReason reason = FinishReason::kLength;
  std::string matched_stop_string;  // for kStopString
  int32_t matched_token_id = -1;    // for kStopToken and kEos
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;
  uint64_t seed = 0;
  std::optional<AttentionStats> attention;  // unset when it was dense
  AttentionProbes probes;                   // what GenerationRequest::probe asked for
  absl::Duration queue_time, prefill_time, time_to_first_token, decode_time;
};

// Where a request's results go: the one arrow that points upward. Declared here, implemented by
// server/stream_writer (and by tests). All methods are called on the engine thread, must not block
// and must not call back into the Engine synchronously, except Engine::Abort.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnProgress(const PrefillProgress& progress) = 0;
  // Log-probabilities of the prompt's tokens 1..n-1, in order, when asked for; may come in pieces.
  virtual void OnPromptLogprobs(std::vector<PositionLogprobs> logprobs) = 0;
  // Scoring mode: logits after the prompt's last token (position 0; not when that one was in the KV
  // cache already) and after each scored token.
  // `logits` [vocab_size] float32 is only valid during the call.
  virtual void OnLogits(int position, absl::Span<const float> logits) = 0;
  // `chunk` is only valid during the call: its memory is used for the next one.
  virtual void OnChunk(const OutputChunk& chunk) = 0;
  // Exactly once per index unless the request ends with an error.
  virtual void OnFinished(FinishedOutput output) = 0;
  // Exactly once, last: OK after every index finished, else the error.
  virtual void OnDone(absl::Status status) = 0;
};

}  // namespace tokenbutler
