#include "tests/server/server_fixture.h"

#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"

namespace tokenbutler {
namespace {

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!buffer.Dump(&slices).ok()) return flat;
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

}  // namespace

std::string StreamResult::text(int index) const {
  std::string joined;
  for (const auto& message : messages) {
    if (message.has_chunk() && message.chunk().index() == index) joined += message.chunk().text();
  }
  return joined;
}

int StreamResult::num_tokens(int index) const {
  for (const v1::Finished& one : finished()) {
    if (one.index() == index) return one.usage().completion_tokens();
  }
  return 0;
}

std::vector<v1::Finished> StreamResult::finished() const {
  std::vector<v1::Finished> all;
  for (const auto& message : messages) {
    if (message.has_finished()) all.push_back(message.finished());
  }
  return all;
}

TestServer::TestServer(Options options)
    : metrics_({.version = "1", .torch = "2", .cuda = "none", .isa = "portable"}),
      engine_(options.engine, &clock_, &metrics_),
      streams_(&clock_, absl::Milliseconds(20)),
      preparer_(options.preparer),
      service_({.lifecycle = &lifecycle_,
                .preparer = &preparer_,
                .streams = &streams_,
                .write_threads = &write_threads_,
                .metrics = &metrics_,
                .clock = &clock_},
               options.service),
      options_(std::move(options)) {
  GrpcServerOptions grpc_options;
  grpc_options.port = 0;
  grpc_options.max_receive_bytes = options_.max_receive_bytes;
  grpc_options.reflection = options_.reflection;
  server_ = std::move(GrpcServer::Start(grpc_options, &service_)).value();
  const auto channel = NewChannel();
  stub_ = v1::InferenceService::NewStub(channel);
  health_ = grpc::health::v1::Health::NewStub(channel);
  if (options_.serving) StartServing();
}

TestServer::~TestServer() {
  streams_.EndAll(absl::UnavailableError("the test is over"));
  server_->Shutdown(absl::Seconds(5));
}

void TestServer::StartServing() {
  auto model = std::make_shared<ServedModel>();
  model->name = "fake";
  model->config.architecture = "llama";
  model->config.vocab_size = ByteTokenizer::kVocabSize;
  model->max_model_len = options_.max_model_len;
  model->max_num_seqs = 8;
  model->attention = options_.attention;
  model->max_text_bytes = 4 * static_cast<size_t>(options_.max_model_len);
  model->dtype = "float32";
  model->kv_dtype = "float32";
  model->kv_bytes_per_token = 1000;
  model->engine = &engine_;
  model->tokenizer = &tokenizer_;
  if (options_.chat_template) {
    model->chat_template = &chat_template_;
    model->chat_template_source = "{{ fake }}";
  }
  model->chat_template_error = options_.chat_template_error;
  lifecycle_.SetServing(std::move(model));
  server_->SetReady(true);
}

void TestServer::StartDraining() {
  lifecycle_.StartDraining();
  server_->SetReady(false);
  engine_.StartDraining();
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const {
  grpc::ChannelArguments arguments;
  // Equal channels would share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

StreamResult TestServer::Generate(const v1::GenerateRequest& request,
                                  std::optional<absl::Duration> timeout) {
  grpc::ClientContext context;
  if (timeout) {
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(*timeout));
  }
  StreamResult result;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) result.messages.push_back(message);
  result.status = reader->Finish();
  return result;
}

void TestServer::ExpectIdle() {
  EXPECT_TRUE(Eventually([&] { return metrics_.open_streams.Value() == 0; }));
  EXPECT_TRUE(Eventually([&] { return metrics_.requests_preparing.Value() == 0; }));
  EXPECT_TRUE(engine_.WaitUntilIdle(absl::Seconds(20)));
  EXPECT_EQ(metrics_.requests_running.Value(), 0);
  EXPECT_EQ(metrics_.requests_waiting.Value(), 0);
  EXPECT_EQ(metrics_.kv_host_used_bytes.Value(), 0);
}

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  return request;
}

RawResult RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  RawResult result;
  call->StartCall(nullptr);
  if (wait()) {
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    wait();
    call->WritesDone(nullptr);
    wait();
    while (true) {
      grpc::ByteBuffer message;
      call->Read(&message, nullptr);
      if (!wait()) break;
      result.messages.push_back(Flatten(message));
    }
  }
  call->Finish(&result.status, nullptr);
  wait();
  queue.Shutdown();
  return result;
}

}  // namespace tokenbutler
