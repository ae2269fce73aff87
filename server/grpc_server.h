#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Server;
class Service;
class ServerCredentials;
}  // namespace grpc

namespace tokenbutler {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  int port = 50051;  // 0: any free one
  // Largest request in bytes: a prompt of a million tokens has more than gRPC's own 4 MiB.
  int max_receive_bytes = 64 << 20;
  bool reflection = true;  // grpc.reflection.v1alpha, for grpcurl and its like
};

// gRPC's server with its health service. The health of "" says that the process lives; the health
// of each of our services says whether it takes requests.
class GrpcServer {
 public:
  // Listens and answers at once; not ready until SetReady(true). `service` must outlive it.
  // UNAVAILABLE naming the address when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           grpc::Service* service);
  // Ends what is left at once.
  ~GrpcServer();

  int port() const { return port_; }

  // What the health service says about our services.
  void SetReady(bool ready);

  // Refuses new calls, waits for open ones up to `grace`, cancels the rest, waits for their ends.
  void Shutdown(absl::Duration grace);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, int port);

  std::unique_ptr<grpc::Server> server_;
  const int port_;
  bool shut_down_ = false;
};

}  // namespace tokenbutler
