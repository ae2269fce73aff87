#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/attention_probes.h"
#include "engine/selection/attention_params.h"

namespace tokenbutler {

// What the client asked for, validated and tokenised: values only. Field names follow
// proto/tokenbutler/v1/inference.proto; bounds are checked once, in server/proto_convert.

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  int top_k = 0;             // 0: off
  float min_p = 0.0f;        // [0, 1]
  float typical_p = 1.0f;    // (0, 1]
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id -> added to its logit
  std::optional<uint64_t> seed;                       // unset: drawn by the engine and reported
  int n = 1;                                          // completions of one prompt
  int min_tokens = 0;                                 // EOS and stops are suppressed before
};

struct StopParams {
  std::vector<std::string> strings;
  std::vector<int32_t> token_ids;
  bool ignore_eos = false;
  bool include_in_output = false;
};

struct LogprobParams {
  std::optional<int> top;  // unset: none; 0: the sampled token's only; k: also the k best
  bool include_prompt = false;
};

struct OutputParams {
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool return_progress = false;
  int stream_interval = 1;  // tokens per chunk at least
};

// A prompt that is to stay in the KV cache when its request is over, so that others can begin with
// it (GenerationRequest::continues).
struct HoldParams {
  std::string name;  // unique among held prompts; "": none is kept
  // Policies that watch the prefill. A request with exactly one of these attentions goes on with
  // what that one has learned; one with others learns from the prompt's rows, which some policies
  // cannot (ModelRunner::learns_from_prefill).
  std::vector<AttentionParams> attentions;
};

// K and V rows of a prompt's first tokens, computed before and kept somewhere else: whole blocks of
// the KV cache's layout, one after the other, the last of them partly used.
struct PromptRows {
  int num_tokens = 0;
  std::vector<std::byte> blocks;
};

struct GenerationRequest {
  std::string request_id;                 // unique among running requests
  std::vector<int32_t> prompt_token_ids;  // not empty
  SamplingParams sampling;
  int max_tokens = 0;           // 0: prefill only
  bool fit_max_tokens = false;  // lower max_tokens to what the KV cache can ever hold
  StopParams stop;
  LogprobParams logprobs;
  OutputParams output;
  AttentionParams attention;                  // dense unless told otherwise
  ProbeParams probe;                          // of sparse attention, for FinishedOutput::probes
  int priority = 0;                           // higher first
  absl::Time arrival = absl::InfinitePast();  // when the RPC came in
  absl::Time deadline = absl::InfiniteFuture();
  // The prompt begins with all tokens of the held prompt of this name, and shares its rows; only
  // the others are run. "": it does not.
  std::string continues;
  // Copied in as the rows of the prompt's first tokens, instead of running those. Null: none.
  std::shared_ptr<const PromptRows> prompt_rows;
  // Holds the prompt. Excludes everything that comes after it: max_tokens, tokens to score.
  HoldParams hold;
  // The prompt's last so many tokens are run one by one, each attending to what `attention`
  // chooses, as if they had been generated, instead of densely in the prefill: a question that is
  // put to a sparse context. Less than the prompt has. Excludes holding, tokens to score and
  // log-probabilities of the prompt.
  int decoded_prompt_tokens = 0;
  // Scoring mode: these tokens are fed one by one through the decode path instead of sampling,
  // and the full logits of each position go to TokenSink::OnLogits. Excludes max_tokens > 0.
  std::vector<int32_t> score_token_ids;
};

}  // namespace tokenbutler
