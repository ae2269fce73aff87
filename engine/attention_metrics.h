#pragma once

#include "base/metrics.h"
#include "engine/attention_stats.h"

namespace tokenbutler {

// Adds to the metrics what the attention of a sequence did between two looks at its stats. When it
// ran decode steps meanwhile (one, as the engine looks after each), the histograms of steps get one
// observation. Allocates nothing.
void RecordAttention(const AttentionStats& before, const AttentionStats& now, Metrics* metrics);

}  // namespace tokenbutler
