#pragma once

#include "base/status.h"
#include "engine/selection/attention_options.h"

namespace CLI {
class App;
}

namespace tokenbutler {

// The flags that say how requests attend that do not say so themselves. `flags` must outlive the
// parsing.
void AddAttentionFlags(CLI::App& app, AttentionOptions* flags);

// What the flags amount to: sketch where no policy is named, with the options that suit a device
// tier of its own if it `is_staged`. INVALID_ARGUMENT naming the option.
absl::StatusOr<AttentionParams> ResolveAttentionFlags(const AttentionOptions& flags,
                                                      bool is_staged);

}  // namespace tokenbutler
