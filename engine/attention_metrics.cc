#include "engine/attention_metrics.h"

#include <cstdint>

namespace tokenbutler {
namespace {

void Add(int64_t before, int64_t now, prometheus::Counter& counter) {
  if (now > before) counter.Increment(static_cast<double>(now - before));
}

void Observe(absl::Duration before, absl::Duration now, prometheus::Histogram& histogram) {
  histogram.Observe(absl::ToDoubleSeconds(now - before));
}

void CountTransfers(const OffloadCounters& before, const OffloadCounters& now, Metrics* metrics) {
  Metrics::KvTransferBytesTotal& bytes = metrics->kv_transfer_bytes_total;
  Add(before.host_to_device_bytes - before.prefetched_bytes,
      now.host_to_device_bytes - now.prefetched_bytes, bytes.fetch);
  Add(before.prefetched_bytes, now.prefetched_bytes, bytes.prefetch);
  Add(before.device_to_host_bytes, now.device_to_host_bytes, bytes.write_back);
  Add(before.lookups, now.lookups, metrics->hot_buffer_lookups_total);
  Add(before.hits, now.hits, metrics->hot_buffer_hits_total);
  Add(before.prefetch_issued, now.prefetch_issued, metrics->prefetch_issued_total);
  Add(before.prefetch_late, now.prefetch_late, metrics->prefetch_late_total);
}

}  // namespace

void RecordAttention(const AttentionStats& before, const AttentionStats& now, Metrics* metrics) {
  CountTransfers(before.offload, now.offload, metrics);
  Metrics::DenseFallbackTotal& fallbacks = metrics->dense_fallback_total;
  Add(before.fallbacks.short_context, now.fallbacks.short_context, fallbacks.short_context);
  Add(before.fallbacks.first_layer, now.fallbacks.first_layer, fallbacks.dense_layer);
  Add(before.fallbacks.window, now.fallbacks.window, fallbacks.window);
  if (const int64_t probes = now.recall_probes - before.recall_probes; probes > 0) {
    metrics->selection_recall_ratio.Observe((now.recall_sum - before.recall_sum) /
                                            static_cast<double>(probes));
  }
  const int64_t lists = now.attended_lists - before.attended_lists;
  if (lists <= 0) return;  // no decode step ran
  const double attended = static_cast<double>(now.attended_tokens - before.attended_tokens);
  metrics->selected_tokens.Observe(attended / static_cast<double>(lists));
  metrics->attended_ratio.Observe(attended /
                                  static_cast<double>(now.context_tokens - before.context_tokens));
  Observe(before.predictor, now.predictor, metrics->predictor_seconds);
  Observe(before.offload.transfer, now.offload.transfer, metrics->kv_transfer_seconds);
  Observe(before.offload.stall, now.offload.stall, metrics->decode_stall_seconds);
}

}  // namespace tokenbutler
