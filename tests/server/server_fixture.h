#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "server/grpc_server.h"
#include "server/inference_service.h"
#include "server/lifecycle.h"
#include "server/open_streams.h"
#include "server/request_preparer.h"
#include "server/write_threads.h"
#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/fake_chat_template.h"
#include "tests/testing/fake_engine.h"
#include "tokenbutler/v1/inference.grpc.pb.h"

namespace tokenbutler {

// What one Generate call streamed, and how it ended.
struct StreamResult {
  std::vector<v1::GenerateResponse> messages;
  grpc::Status status;

  std::string text(int index = 0) const;
  int num_tokens(int index = 0) const;  // by Finished.usage; 0 without
  std::vector<v1::Finished> finished() const;
};

// The server's parts put together as main() does, over a real socket on 127.0.0.1, with a
// FakeEngine behind them.
class TestServer {
 public:
  struct Options {
    FakeEngine::Options engine;
    InferenceService::Options service;
    RequestPreparer::Options preparer;
    int max_receive_bytes = 64 << 20;
    bool reflection = true;
    bool serving = true;  // false: still loading
    int max_model_len = 1000;
    AttentionParams attention;
    bool chat_template = true;
    std::string chat_template_error;  // as when the model's own cannot be used
  };

  TestServer() : TestServer(Options()) {}
  explicit TestServer(Options options);
  ~TestServer();

  void StartServing();
  void StartDraining();

  int port() const { return server_->port(); }
  std::shared_ptr<grpc::Channel> NewChannel() const;
  v1::InferenceService::Stub& stub() { return *stub_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }
  FakeEngine& engine() { return engine_; }
  Metrics& metrics() { return metrics_; }
  OpenStreams& streams() { return streams_; }

  // Runs a call to its end.
  StreamResult Generate(const v1::GenerateRequest& request,
                        std::optional<absl::Duration> timeout = std::nullopt);

  // Waits until nothing is open, queued or running; fails the test when that takes too long.
  void ExpectIdle();

 private:
  Metrics metrics_;
  RealClock clock_;
  WriteThreads write_threads_;
  FakeEngine engine_;
  ByteTokenizer tokenizer_;
  FakeChatTemplate chat_template_;
  Lifecycle lifecycle_;
  OpenStreams streams_;
  RequestPreparer preparer_;
  InferenceService service_;
  const Options options_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// A text prompt for `max_tokens` tokens.
v1::GenerateRequest TextRequest(const std::string& text, int max_tokens);

// Sends `bytes` as the only request of `method` ("/package.Service/Method") and reads to the end.
struct RawResult {
  std::vector<std::string> messages;
  grpc::Status status;
};
RawResult RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& bytes);

// The detail of type T in a status's google.rpc.Status; nullopt when there is none.
template <typename T>
std::optional<T> Detail(const grpc::Status& status) {
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& any : rich.details()) {
    T detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

// Waits until `condition` holds; false after 20 s.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  while (!condition()) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace tokenbutler
