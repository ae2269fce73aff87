#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/metrics.h"
#include "base/process_metrics.h"
#include "prometheus/exposer.h"

namespace tokenbutler {

// Serves GET /metrics over HTTP for Prometheus: ours and the process's. Owns two threads.
class MetricsServer {
 public:
  // `port` 0: any free one. UNAVAILABLE naming the address when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& host, int port,
                                                              const Metrics& metrics);

  int port() const { return port_; }

 private:
  MetricsServer() = default;

  std::shared_ptr<ProcessMetrics> process_metrics_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
};

}  // namespace tokenbutler
