// tokenbutler-server. Builds the object graph from top to bottom; docs/operations.md is for users.
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/logging.h"
#include "base/metrics.h"
#include "base/status.h"
#include "google/protobuf/stubs/logging.h"
#include "server/grpc_server.h"
#include "server/inference_service.h"
#include "server/lifecycle.h"
#include "server/metrics_server.h"
#include "server/model_stack.h"
#include "server/open_streams.h"
#include "server/request_preparer.h"
#include "server/server_config.h"
#include "server/shutdown_signals.h"
#include "server/version.h"
#include "server/write_threads.h"

namespace tokenbutler {
namespace {

// glibc gives large blocks back to the kernel, and the page faults of taking them again dominate
// prefill. 32 MiB is the largest threshold that it accepts.
void KeepLargeAllocations() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

// protobuf reports each damaged message on standard error; our answers to the client say it better.
void QuietProtobuf() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char*, int, const std::string& message) {
        const bool fatal = level == google::protobuf::LOGLEVEL_FATAL;
        LogLine(fatal ? LogLevel::kError : LogLevel::kDebug, {}, "protobuf: " + message);
      });
}

BuildLabels ThisBuild() {
  return {.version = kVersion,
          .torch = TOKENBUTLER_TORCH_VERSION,
          .cuda = "none",
          .isa = std::string(CpuTargetName(DetectCpuTarget()))};
}

absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  // Renamed into place, so that a reader never sees half a number.
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary);
    file << port << "\n";
    if (!file.flush()) return UnavailableError("cannot write {}", temporary);
  }
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return UnavailableError("cannot write {}", path);
}

void LogConfiguration(const ServerConfig& config, const BuildLabels& build) {
  LogInfo("tokenbutler-server {} (LibTorch {}, {})", build.version, build.torch, build.isa);
  std::string flags;
  for (const auto& [flag, value] : config.effective) flags += fmt::format(" {}={}", flag, value);
  LogInfo("configuration:{}", flags);
}

// From outside in: nobody is told to come here, nobody new gets in, who is in may finish, the rest
// is ended.
void Drain(const ServerConfig& config, Lifecycle* lifecycle, OpenStreams* streams,
           GrpcServer* grpc_server, Engine* engine) {
  constexpr absl::Duration kCancelLimit = absl::Seconds(5);
  lifecycle->StartDraining();
  grpc_server->SetReady(false);
  engine->StartDraining();
  if (!streams->WaitUntilEmpty(config.shutdown_grace)) {
    LogWarning("the grace period of {} is over: ending what still runs",
               absl::FormatDuration(config.shutdown_grace));
    streams->EndAll(
        UnavailableError("the server is shutting down and its grace period of {} is "
                         "over",
                         absl::FormatDuration(config.shutdown_grace)));
    streams->WaitUntilEmpty(kCancelLimit);
  }
  // What is left are health watches, and clients that do not take in their last messages.
  grpc_server->Shutdown(absl::Milliseconds(200));
  streams->WaitUntilEmpty(kCancelLimit);
}

absl::Status Serve(const ServerConfig& config) {
  Lifecycle lifecycle;
  ShutdownSignals signals([&lifecycle] {
    // Loading cannot be interrupted, and nothing is open that would have to be closed.
    if (lifecycle.state() == Lifecycle::State::kLoading) std::_Exit(0);
  });
  const BuildLabels build = ThisBuild();
  LogConfiguration(config, build);

  RealClock clock;
  Metrics metrics(build);
  WriteThreads write_threads;  // outlives every stream, and the engine that names streams to it
  ModelStack stack;            // outlives every call
  OpenStreams streams(&clock, std::min(config.slow_reader_timeout / 4, absl::Seconds(1)));
  RequestPreparer preparer(config.preparer);
  InferenceService service({.lifecycle = &lifecycle,
                            .preparer = &preparer,
                            .streams = &streams,
                            .write_threads = &write_threads,
                            .metrics = &metrics,
                            .clock = &clock},
                           {.stall_limit = config.slow_reader_timeout,
                            .max_pending_bytes = static_cast<size_t>(config.stream_buffer_bytes),
                            .build = build,
                            .configuration = config.effective});
  ASSIGN_OR_RETURN(const auto grpc_server, GrpcServer::Start(config.grpc, &service));
  ASSIGN_OR_RETURN(const auto metrics_server,
                   MetricsServer::Start(config.grpc.host, config.metrics_port, metrics));
  RETURN_IF_ERROR(WritePortFile(config.port_file, grpc_server->port()));
  RETURN_IF_ERROR(WritePortFile(config.metrics_port_file, metrics_server->port()));
  LogInfo("listening: gRPC on {}:{}, metrics on http://{}:{}/metrics", config.grpc.host,
          grpc_server->port(), config.grpc.host, metrics_server->port());

  const absl::Time load_start = clock.Now();
  ASSIGN_OR_RETURN(stack, BuildModelStack(config, &clock, &metrics));
  lifecycle.SetServing(stack.served);
  grpc_server->SetReady(true);
  LogInfo(
      "serving {} ({}, {} tokens of context, {} attention, {:.1f} GiB of KV cache) after {:.1f} s",
      stack.served->name, stack.served->dtype, stack.served->max_model_len,
      PolicyName(stack.served->attention.policy),
      static_cast<double>(stack.kv_store->capacity_bytes()) / 0x1p30,
      absl::ToDoubleSeconds(clock.Now() - load_start));

  signals.WaitForFirst();
  Drain(config, &lifecycle, &streams, grpc_server.get(), stack.engine.get());
  LogInfo("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> command_line = ParseCommandLine(argc, argv);
  if (!command_line.ok()) {
    fmt::print(stderr, "tokenbutler-server: {}\nRun tokenbutler-server --help for the flags.\n",
               std::string(command_line.status().message()));
    return 2;
  }
  if (!command_line->config) {
    fmt::print("{}", command_line->text);
    return 0;
  }
  KeepLargeAllocations();
  QuietProtobuf();
  signal(SIGPIPE, SIG_IGN);
  InitLogging(command_line->config->log_format, command_line->config->log_level);
  const absl::Status status = Serve(*command_line->config);
  if (status.ok()) return 0;
  LogError("{}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
