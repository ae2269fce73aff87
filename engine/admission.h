#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/held_prompt.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/step_plan.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// The most a request can use, known before it runs; all of it is taken when it is admitted, so that
// no running request ever lacks a block.
struct Footprint {
  int max_new_tokens = 0;      // sampled tokens per completion; 0 in scoring mode
  bool context_bound = false;  // the room there is, not max_tokens, sets max_new_tokens
  int blocks_per_sequence = 0;
  int shared_blocks = 0;  // full blocks of what is prefilled, which the n completions share
  // What the attention policy keeps beside them, in blocks of the same pool (StateLayout).
  int state_blocks_per_sequence = 0;
  int shared_state_blocks = 0;  // those that belong to shared blocks only
  // Whether some step may attend to less than all tokens: sparse, and the budget does not hold the
  // whole sequence. If not, the policy keeps nothing.
  bool selects = false;
  // Full blocks of the held prompt that the request begins with, and of what it knows of it.
  int held_blocks = 0;
  int held_state_blocks = 0;
  int observer_state_blocks = 0;  // of all of HoldParams::attentions
  // That stand for the memory which policies take elsewhere, and are used by nobody meanwhile.
  int reserved_blocks = 0;
  int64_t total_blocks = 0;  // of all n completions, all kinds but the held
};

// What a request is admitted to: constants of one engine.
struct AdmissionLimits {
  EngineConfig config;
  KvLayout layout;
  int num_blocks = 0;  // of the host tier
  int vocab_size = 0;
  absl::Span<const int32_t> eos_ids;  // the tokenizer's, not owned
  const ModelRunner* runner =
      nullptr;  // says which attention there is; not owned; null: dense only
};

// How completion `index` of a request is sampled.
SamplerOptions MakeSamplerOptions(const GenerationRequest& request, const AdmissionLimits& limits,
                                  uint64_t seed, int index);

// Refuses what this engine can never run. INVALID_ARGUMENT: empty prompt, token id outside the
// vocabulary, prompt (with the tokens to score) longer than max_model_len, n outside
// [1, max_num_seqs], scoring together with sampling, parameters that the Sampler refuses, attention
// that the runner refuses (or UNIMPLEMENTED, as it says), a prompt that does not begin with what it
// is said to begin with: `prefix` (the held prompt that it continues; null: none), prompt_rows.
// RESOURCE_EXHAUSTED naming needed and total bytes: more blocks than the host tier has; with
// fit_max_tokens only when not even one new token fits.
absl::StatusOr<Footprint> CheckAdmissible(const GenerationRequest& request,
                                          const AdmissionLimits& limits,
                                          const HeldPrompt* prefix = nullptr);

}  // namespace tokenbutler
