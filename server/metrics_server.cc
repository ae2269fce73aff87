#include "server/metrics_server.h"

#include <exception>
#include <string>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& host,
                                                                    int port,
                                                                    const Metrics& metrics) {
  // A connection holds a thread while its request is awaited, so connections that say nothing are
  // closed soon: they must not keep the scraper out.
  constexpr char kThreads[] = "4";
  constexpr char kRequestTimeoutMs[] = "1000";
  const bool bare_ipv6 = host.find(':') != std::string::npos && host[0] != '[';
  const std::string address =
      bare_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", address, "num_threads", kThreads,
                                 "request_timeout_ms", kRequestTimeoutMs});
    server->port_ = server->exposer_->GetListeningPorts().at(0);
  } catch (const std::exception& error) {
    return UnavailableError("cannot serve metrics on {} (--host, --metrics-port): {}", address,
                            error.what());
  }
  server->process_metrics_ = std::make_shared<ProcessMetrics>();
  server->exposer_->RegisterCollectable(metrics.registry());
  server->exposer_->RegisterCollectable(server->process_metrics_);
  return server;
}

}  // namespace tokenbutler
