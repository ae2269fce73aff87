#include "tests/server/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/testing/model_cache.h"

namespace tokenbutler {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(120);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_path_.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) exit_code_ = 127;
  posix_spawn_file_actions_destroy(&actions);
}

ChildProcess::~ChildProcess() {
  if (running()) {
    Signal(SIGKILL);
    Wait();
  }
}

void ChildProcess::Signal(int signal) const { kill(pid_, signal); }

bool ChildProcess::running() { return !Wait(absl::ZeroDuration()); }

std::optional<int> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time limit = absl::Now() + timeout;
  while (!exit_code_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (absl::Now() >= limit) {
      return std::nullopt;
    } else {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  return exit_code_;
}

std::string ChildProcess::output() const { return ReadFile(output_path_); }

ServerProcess::ServerProcess(const std::string& model, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {TOKENBUTLER_SERVER_BINARY,
                                      "--model",
                                      model,
                                      "--port",
                                      "0",
                                      "--port-file",
                                      (folder_.path() / "port").string(),
                                      "--metrics-port",
                                      "0",
                                      "--metrics-port-file",
                                      (folder_.path() / "metrics_port").string()};
  command.insert(command.end(), flags.begin(), flags.end());
  process_ = std::make_unique<ChildProcess>(command);
}

bool ServerProcess::WaitUntilListening() {
  const absl::Time limit = absl::Now() + kStartLimit;
  while (process_->running() && absl::Now() < limit) {
    port_ = std::atoi(ReadFile(folder_.path() / "port").c_str());
    metrics_port_ = std::atoi(ReadFile(folder_.path() / "metrics_port").c_str());
    if (port_ > 0 && metrics_port_ > 0) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

bool ServerProcess::WaitUntilServing() {
  if (!WaitUntilListening()) return false;
  const auto stub = grpc::health::v1::Health::NewStub(NewChannel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(kStartLimit));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("tokenbutler.v1.InferenceService");
  const auto reader = stub->Watch(&context, request);
  grpc::health::v1::HealthCheckResponse response;
  while (reader->Read(&response)) {
    if (response.status() == grpc::health::v1::HealthCheckResponse::SERVING) return true;
  }
  return false;
}

std::shared_ptr<grpc::Channel> ServerProcess::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
}

double ServerProcess::Metric(const std::string& series) const {
  const std::string page = HttpGet(metrics_port_, "/metrics");
  const std::string key = "\ntokenbutler_" + series + " ";
  const size_t at = page.find(key);
  return at == std::string::npos ? -1 : std::atof(page.c_str() + at + key.size());
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string response;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) response.append(buffer, n);
    }
  }
  close(fd);
  return response;
}

std::string SmolLm2Path() {
  const std::string path = CachedModelPath("SmolLM2-135M-Instruct.Q4_1.gguf");
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace tokenbutler
