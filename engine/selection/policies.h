#pragma once

#include <memory>

#include "base/status.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/policy_memory.h"
#include "engine/selection/policy_spec.h"
#include "engine/selection/token_selector.h"
#include "offload/kv_layout.h"
#include "offload/state_layout.h"

namespace tokenbutler {

// The state that a sequence with these parameters keeps beside its KV blocks.
StateLayout StateLayoutFor(const AttentionParams& params, const SelectionResources& resources);

// The most that it keeps elsewhere, with `num_tokens` tokens in the end.
PolicyMemory PolicyMemoryFor(const AttentionParams& params, const SelectionResources& resources,
                             int num_tokens);

// Whether the policy has to see a prompt's queries, and not only its rows.
bool LearnsFromPrefill(AttentionPolicy policy);

// INVALID_ARGUMENT naming the field when parameters, policy and model do not go together: checked
// when a request comes in, so that Create cannot fail for a reason that the client can mend.
absl::Status CheckPolicy(const AttentionParams& params, const SelectionResources& resources);

// params.FittedTo(num_tokens, block_size), which CheckPolicy takes wherever it takes `params`: a
// policy gets the budget that it asks for, even where the sequence is shorter.
AttentionParams FittedParams(const AttentionParams& params, int num_tokens, int block_size);

// A selector for a new sequence. REQUIRES: params.sparse(), CheckPolicy is OK.
absl::StatusOr<std::unique_ptr<TokenSelector>> CreateSelector(const AttentionParams& params,
                                                              const SelectionResources& resources);

// For a sequence whose budget holds every token it will ever have: is never asked, keeps nothing.
std::unique_ptr<TokenSelector> NewIdleSelector();

}  // namespace tokenbutler
