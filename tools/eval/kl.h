#pragma once

#include <string>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "tools/eval/eval_session.h"
#include "tools/scoring/report.h"

namespace tokenbutler {

// How far the next-token distributions of every setting are from those of dense attention, over the
// last tokens of texts, all of which go through the setting's attention one by one. What they are
// compared with has a KV cache of the compute dtype in any case.
struct KlOptions {
  EvalOptions eval;  // context_len: of each text; forked_tokens is not read
  std::vector<std::string>
      texts;                // files, or folders of them; those that are too short are left out
  int max_texts = 1000;     // of those that are long enough, the first so many
  int scored_tokens = 128;  // the last of context_len
  // Of the texts for the policies that take minutes for each: a prefill that they watch (h2o,
  // snapkv), all keys and values reconstructed at each step (xkv).
  int slow_texts = 10;
};
absl::StatusOr<Report> RunKl(const KlOptions& options, ComputePool& pool);

}  // namespace tokenbutler
