#pragma once

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace tokenbutler {

// The conventional process_* metrics, read from /proc/self at each scrape: CPU seconds, resident
// and virtual memory, open and permitted file descriptors, threads, start time. A value that
// cannot be read is left out. Any thread.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace tokenbutler
