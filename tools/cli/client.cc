#include "tools/cli/client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "fmt/format.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace tokenbutler {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;  // log-probabilities of a long prompt are large

std::shared_ptr<grpc::Channel> Connect(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

int Generation::num_tokens() const {
  int total = 0;
  for (const v1::Finished& one : finished) total += one.usage().completion_tokens();
  return total;
}

double Generation::tokens_per_second() const {
  const double seconds = absl::ToDoubleSeconds(total - first_text);
  const int after_first = num_tokens() - static_cast<int>(finished.size());
  return after_first > 0 && seconds > 0 ? after_first / seconds : 0;
}

std::string Generation::Speed() const {
  std::string words = fmt::format("{} tokens", num_tokens());
  if (num_tokens() > 0) {
    words += fmt::format(", the first after {:.2f} s", absl::ToDoubleSeconds(first_text));
  }
  if (tokens_per_second() > 0) words += fmt::format(", {:.1f} tokens/s", tokens_per_second());
  return words;
}

std::string Generation::Offload() const {
  // Means are over tokens, as every completion has its own number of them.
  double steps = 0;
  double attended = 0;
  double hits = 0;
  double stall = 0;
  int64_t fetched_bytes = 0;
  bool sparse = false;
  for (const v1::Finished& one : finished) {
    if (!one.has_offload()) continue;
    sparse = true;
    const double weight = std::max(one.usage().completion_tokens() - 1, 0);
    steps += weight;
    attended += weight * one.offload().mean_tokens_attended();
    hits += weight * one.offload().hit_ratio();
    fetched_bytes += one.offload().host_to_device_bytes();
    stall +=
        static_cast<double>(one.offload().stall().seconds()) + one.offload().stall().nanos() * 1e-9;
  }
  if (!sparse) return "";
  if (steps == 0) return "no decode steps";
  std::string tokens = fmt::format("attended to {:.1f} tokens per head and step", attended / steps);
  if (fetched_bytes == 0) return tokens;  // nothing crosses a link, or everything had before
  return fmt::format(
      "{}, {:.1f} % of them on the device already, {:.1f} MiB fetched, stalled {:.2f} s", tokens,
      100 * hits / steps, static_cast<double>(fetched_bytes) / 0x1p20, stall);
}

std::string Generation::Summary() const {
  const std::string offload = Offload();
  return offload.empty() ? fmt::format("[{}]\n", Speed())
                         : fmt::format("[{}]\n[{}]\n", Speed(), offload);
}

Client::Client(std::string server, absl::Duration timeout, Interrupt* interrupt)
    : server_(std::move(server)),
      timeout_(timeout),
      interrupt_(interrupt),
      channel_(Connect(server_)),
      stub_(v1::InferenceService::NewStub(channel_)),
      health_(grpc::health::v1::Health::NewStub(channel_)) {}

void Client::SetDeadline(grpc::ClientContext* context) const {
  if (timeout_ == absl::InfiniteDuration()) return;
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout_));
}

grpc::Status Client::Call(const std::function<grpc::Status(grpc::ClientContext*)>& method) {
  grpc::ClientContext context;
  SetDeadline(&context);
  Interrupt::Cancels cancels(interrupt_, &context);
  return method(&context);
}

Generation Client::Generate(const v1::GenerateRequest& request,
                            const std::function<void(const v1::GenerateResponse&)>& on_message) {
  grpc::ClientContext context;
  SetDeadline(&context);
  Interrupt::Cancels cancels(interrupt_, &context);
  Generation generation;
  const absl::Time start = absl::Now();
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  bool has_text = false;
  while (reader->Read(&message)) {
    if (message.has_chunk() && !std::exchange(has_text, true)) {
      generation.first_text = absl::Now() - start;
    }
    if (message.has_chunk() && message.chunk().index() == 0) {
      generation.text += message.chunk().text();
    }
    if (message.has_finished()) generation.finished.push_back(message.finished());
    on_message(message);
  }
  generation.status = reader->Finish();
  generation.total = absl::Now() - start;
  return generation;
}

}  // namespace tokenbutler
