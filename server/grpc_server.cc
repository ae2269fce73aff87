#include "server/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "tokenbutler/v1/inference.grpc.pb.h"

namespace tokenbutler {
namespace {

// Linking gRPC's reflection library adds it to every server; this takes it out of one again.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const auto is_reflection = [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
      return plugin->name() == "proto_server_reflection";
    };
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(), is_reflection), plugins->end());
  }
};

// The one place that decides how clients are authenticated. Plaintext for now: TLS, mutual TLS and
// API keys belong here (and a plaintext port for health probes beside them).
std::shared_ptr<grpc::ServerCredentials> Credentials() { return grpc::InsecureServerCredentials(); }

void SetKeepalive(grpc::ServerBuilder& builder) {
  constexpr int kKeepaliveMs = 60'000;
  constexpr int kKeepaliveTimeoutMs = 20'000;
  constexpr int kMinClientPingMs = 10'000;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingMs);
}

std::string Address(const GrpcServerOptions& options) {
  const bool bare_ipv6 = options.host.find(':') != std::string::npos && options.host[0] != '[';
  return bare_ipv6 ? fmt::format("[{}]:{}", options.host, options.port)
                   : fmt::format("{}:{}", options.host, options.port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              grpc::Service* service) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!options.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.SetMaxSendMessageSize(-1);  // our own messages are bounded by what was asked for
  // Without SO_REUSEPORT a second server on the same port is an error, not a surprise.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  SetKeepalive(builder);
  int port = 0;
  const std::string address = Address(options);
  builder.AddListeningPort(address, Credentials(), &port);
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return UnavailableError("cannot listen on {} (--host, --port): is the port taken?", address);
  }
  std::unique_ptr<GrpcServer> started(new GrpcServer(std::move(server), port));
  started->SetReady(false);
  return started;
}

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, int port)
    : server_(std::move(server)), port_(port) {}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::SetReady(bool ready) {
  server_->GetHealthCheckService()->SetServingStatus(v1::InferenceService::service_full_name(),
                                                     ready);
}

void GrpcServer::Shutdown(absl::Duration grace) {
  if (std::exchange(shut_down_, true)) return;
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(grace));
  server_->Wait();
}

}  // namespace tokenbutler
