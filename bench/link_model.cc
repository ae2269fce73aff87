#include "bench/link_model.h"

#include <algorithm>

namespace tokenbutler {

LinkModel::Step LinkModel::StepOf(const OffloadCounters& counters, double token_bytes,
                                  bool defers) const {
  if (counters.lookups == 0) return {};
  const double attended_bytes =
      2.0 * head_dim * element_bytes * token_budget * num_layers * num_kv_heads;
  const double scale = attended_bytes / (token_bytes * static_cast<double>(counters.lookups));
  const double ahead_bytes = scale * static_cast<double>(counters.prefetched_bytes);
  const double demand_bytes =
      scale * static_cast<double>(counters.host_to_device_bytes - counters.prefetched_bytes);
  const auto ms = [&](double bytes) { return bytes / gbps / 1e6; };

  Step step;
  step.mb = (demand_bytes + ahead_bytes) / 1e6;
  step.link_ms = ms(demand_bytes + ahead_bytes);
  const double hidden_ms = ms(ahead_bytes) + (defers ? ms(demand_bytes) : 0);
  step.stall_ms = std::max(0.0, hidden_ms - step_ms);
  if (!defers && demand_bytes > 0) {
    step.stall_ms += ms(demand_bytes) + num_layers * latency_us / 1e3;
  }
  return step;
}

}  // namespace tokenbutler
