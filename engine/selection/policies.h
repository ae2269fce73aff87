#pragma once

#include <memory>

#include "base/status.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/policy_spec.h"
#include "engine/selection/token_selector.h"
#include "offload/kv_layout.h"
#include "offload/state_layout.h"

namespace tokenbutler {

// The state that a sequence with these parameters keeps beside its KV blocks.
StateLayout StateLayoutFor(const AttentionParams& params, const SelectionResources& resources);

// INVALID_ARGUMENT naming the field when parameters, policy and model do not go together: checked
// when a request comes in, so that Create cannot fail for a reason that the client can mend.
absl::Status CheckPolicy(const AttentionParams& params, const SelectionResources& resources);

// A selector for a new sequence. REQUIRES: params.sparse(), CheckPolicy is OK.
absl::StatusOr<std::unique_ptr<TokenSelector>> CreateSelector(const AttentionParams& params,
                                                              const SelectionResources& resources);

}  // namespace tokenbutler
