#pragma once

#include <algorithm>

#include "engine/selection/attention_params.h"
#include "offload/token_selection.h"

namespace tokenbutler {

// How a step's budget is spent: tokens [0, sink_end) and [local_begin, context_len) are attended in
// any case, num_important of those between are chosen.
struct AttendedRanges {
  int sink_end = 0;
  int local_begin = 0;
  int num_important = 0;

  // With a local window that begins at `local_begin` (it may be older than the last local_window
  // tokens: between two scans it grows).
  static AttendedRanges At(const AttentionParams& params, int context_len, int local_begin) {
    AttendedRanges ranges;
    ranges.sink_end = std::min(params.sink_tokens, context_len);
    ranges.local_begin = std::max(local_begin, ranges.sink_end);
    const int fixed = ranges.sink_end + context_len - ranges.local_begin;
    ranges.num_important =
        std::clamp(params.token_budget - fixed, 0, ranges.local_begin - ranges.sink_end);
    return ranges;
  }
};

// Adds tokens [begin, end) to a KV head's list: sink and local tokens.
void AddAlways(int begin, int end, int kv_head, TokenSelection* selection);

}  // namespace tokenbutler
