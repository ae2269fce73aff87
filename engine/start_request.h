#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/admission.h"
#include "engine/held_prompt.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "engine/token_sink.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// A request that was found admissible and is to wait for its turn.
struct IncomingRequest {
  GenerationRequest request;
  Footprint footprint;
  std::shared_ptr<const HeldPrompt> prefix;  // the prompt that it continues, or null
  std::shared_ptr<TokenSink> sink;
  uint64_t ticket = 0;  // ascending in the order of arrival
  uint64_t seed = 0;    // of its sampling
  absl::Time now;
};

// The request's state in the queue: nothing of the model's is asked for yet. Any thread.
std::unique_ptr<RequestState> MakeRequest(IncomingRequest incoming, const AdmissionLimits& limits);

// Makes what a request that was just admitted needs beside its blocks: the state of its first
// sequence, the observers of a prompt that is to be held, and the rows that its prompt has already
// (those of a held prompt, or copied in); the tokens of the latter count as prefilled at `now`.
// RESOURCE_EXHAUSTED when there is no room for a state, now or ever. After an error nothing counts
// as prefilled. Engine thread only.
absl::Status StartRequest(const KvLayout& layout, ModelRunner& runner, absl::Time now,
                          RequestState* request);

}  // namespace tokenbutler
