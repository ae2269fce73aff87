#pragma once

#include <vector>

#include "engine/attention_probes.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {

// The table of `kl`: what the rows of a setting say together, with 95 % intervals over the texts.
// Comparisons are paired, on the texts that both settings have: with `exact` at the same budget
// (null without) and with dense. "tie": the interval of the difference holds 0.
Checkpoint::Json KlSummary(const Checkpoint& checkpoint, const TextJob& job,
                           const std::vector<Checkpoint::Json>& rows);

// What probes found, as a part of a row: numbers in the order [num_layers, num_kv_heads], null
// where a layer was never compared.
//   {"count": [...], "mass": [...], "overlap": [...]}
Checkpoint::Json ProbeColumns(const AttentionProbes& probes);

// The mean of those of several rows.
Checkpoint::Json MeanProbes(const std::vector<Checkpoint::Json>& rows);

}  // namespace tokenbutler
