#include "tools/eval/attention_columns.h"

#include "tools/scoring/step_bytes.h"

namespace tokenbutler {

Checkpoint::Json AttentionColumns(const TextJob& job, const AttentionStats& stats, int context_len,
                                  const MeasuredModel& model) {
  using Json = Checkpoint::Json;
  const KvLayout& layout = model.layout();
  const bool has_run = stats.attended_lists > 0;
  const double attended = has_run ? static_cast<double>(stats.attended_tokens) /
                                        static_cast<double>(stats.attended_lists)
                                  : context_len;
  const double steps = static_cast<double>(stats.attended_lists) /
                       (static_cast<double>(layout.num_layers) * layout.num_kv_heads);
  const StepBytes read = BytesOfStep(
      {.params = job.params,
       .hidden_size = model.config().hidden_size,
       .kv = layout,
       .state = job.params.sparse() ? model.runner().state_layout(job.params) : StateLayout(),
       .context_len = context_len,
       .attended_tokens = attended});
  const OffloadCounters& offload = stats.offload;
  const bool has_tier = has_run && model.has_device_tier();
  return {{"attended_tokens", attended},
          {"mass_recall", stats.recall_probes == 0
                              ? Json()
                              : Json(stats.recall_sum / static_cast<double>(stats.recall_probes))},
          {"read_bytes", read.streamed + read.gathered},
          {"moved_bytes",
           has_tier ? Json(static_cast<double>(offload.host_to_device_bytes) / steps) : Json()},
          {"hit_rate", has_tier && offload.lookups > 0 ? Json(static_cast<double>(offload.hits) /
                                                              static_cast<double>(offload.lookups))
                                                       : Json()}};
}

}  // namespace tokenbutler
