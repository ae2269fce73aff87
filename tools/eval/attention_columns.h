#pragma once

#include "engine/attention_stats.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/measured_model.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {

// What a setting's attention did in one run, as columns of its row: attended_tokens (mean per step,
// layer and KV head), mass_recall (null: not probed), read_bytes (per step, of cached keys and
// values and of what the policy scans, by arithmetic: step_bytes.h), moved_bytes (per step, counted
// in the device tier) and hit_rate (null: no device tier). `context_len`: tokens in the end.
Checkpoint::Json AttentionColumns(const TextJob& job, const AttentionStats& stats, int context_len,
                                  const MeasuredModel& model);

}  // namespace tokenbutler
