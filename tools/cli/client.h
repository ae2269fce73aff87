#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "tokenbutler/v1/inference.grpc.pb.h"
#include "tools/cli/interrupt.h"

namespace tokenbutler {

// One Generate call and how fast it was.
struct Generation {
  grpc::Status status;
  std::string text;  // of completion 0
  std::vector<v1::Finished> finished;
  absl::Duration first_text;  // from the call until the first chunk
  absl::Duration total;

  int num_tokens() const;  // of all completions
  // Tokens after the first chunk, per second; 0 when there were too few to say.
  double tokens_per_second() const;
  // "12 tokens, the first after 0.31 s, 44.2 tokens/s"
  std::string Speed() const;
  // "attended to 4096.0 tokens per head and step, 97.5 % of them on the device already, 1.2 MiB
  // fetched, stalled 0.01 s", of all completions; only the tokens where nothing was fetched; empty
  // with the policy dense.
  std::string Offload() const;
  // The closing line(s) about it, for standard error.
  std::string Summary() const;
};

// A connection to one server. Calls block; Ctrl-C cancels them.
class Client {
 public:
  // `timeout` bounds each call; infinite: none.
  Client(std::string server, absl::Duration timeout, Interrupt* interrupt);

  const char* server() const { return server_.c_str(); }
  v1::InferenceService::Stub& stub() { return *stub_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

  // Runs one unary call: method(context) with the deadline set and Ctrl-C attached.
  grpc::Status Call(const std::function<grpc::Status(grpc::ClientContext*)>& method);

  // Generates, giving each message to `on_message` as it comes.
  Generation Generate(const v1::GenerateRequest& request,
                      const std::function<void(const v1::GenerateResponse&)>& on_message);

 private:
  void SetDeadline(grpc::ClientContext* context) const;

  const std::string server_;
  const absl::Duration timeout_;
  Interrupt* const interrupt_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace tokenbutler
