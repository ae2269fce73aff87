#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {

// A program that a test started, its output in a file.
class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& command);
  ~ChildProcess();  // killed when it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int signal) const;
  // The exit code, or 128 + signal; nullopt when it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout = absl::Seconds(60));
  bool running();
  // What it printed so far, standard error included.
  std::string output() const;

 private:
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  TemporaryFolder folder_;
  const std::string output_path_ = (folder_.path() / "output").string();
};

// The real tokenbutler-server on free ports.
class ServerProcess {
 public:
  ServerProcess(const std::string& model, const std::vector<std::string>& flags);

  // False when it ended, or was not ready in time; output() says why.
  bool WaitUntilListening();
  bool WaitUntilServing();

  ChildProcess& process() { return *process_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::shared_ptr<grpc::Channel> NewChannel() const;
  // The value of a series of the metrics page, without "tokenbutler_"; -1 when it is not there.
  double Metric(const std::string& series) const;

 private:
  TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0;
  int metrics_port_ = 0;
};

// GET of an HTTP server on this machine: status line, headers and body. Empty: no answer.
std::string HttpGet(int port, const std::string& path);

// SmolLM2 in the cache folder, where scripts/setup puts it; empty when it is not there.
std::string SmolLm2Path();

}  // namespace tokenbutler
