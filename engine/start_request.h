#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Makes what a request that was just admitted needs beside its blocks: the state of its first
// sequence, the observers of a prompt that is to be held, and the rows that its prompt has already
// (those of a held prompt, or copied in); the tokens of the latter count as prefilled at `now`.
// RESOURCE_EXHAUSTED when there is no room for a state, now or ever. After an error nothing counts
// as prefilled. Engine thread only.
absl::Status StartRequest(const KvLayout& layout, ModelRunner& runner, absl::Time now,
                          RequestState* request);

}  // namespace tokenbutler
