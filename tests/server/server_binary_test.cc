// The real program: start, signals, end.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "fmt/format.h"
#include "tests/server/server_fixture.h"
#include "tests/server/server_process.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

constexpr char kNoModel[] = "SmolLM2 is not in the cache: run scripts/setup";

// Runs until somebody stops it.
v1::GenerateRequest Endless(int max_tokens) {
  v1::GenerateRequest request = TextRequest("Once upon a time", max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// A stream whose first message has come.
class OpenStream {
 public:
  OpenStream(const ServerProcess& server, const v1::GenerateRequest& request)
      : stub_(v1::InferenceService::NewStub(server.NewChannel())),
        reader_(stub_->Generate(&context_, request)) {
    v1::GenerateResponse message;
    started_ = reader_->Read(&message);
    if (started_) result_.messages.push_back(message);
  }
  bool started() const { return started_; }
  StreamResult ReadToTheEnd() {
    v1::GenerateResponse message;
    while (reader_->Read(&message)) result_.messages.push_back(message);
    result_.status = reader_->Finish();
    return result_;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  StreamResult result_;
  bool started_ = false;
};

TEST(ServerBinaryTest, AWrongFlagEndsItWithASentence) {
  ChildProcess child({TOKENBUTLER_SERVER_BINARY, "--model", "x", "--port", "99999"});
  EXPECT_EQ(child.Wait(), 2);
  EXPECT_THAT(child.output(), HasSubstr("--port"));
}

TEST(ServerBinaryTest, HelpAndVersion) {
  ChildProcess help({TOKENBUTLER_SERVER_BINARY, "--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.output(), HasSubstr("--kv-capacity"));
  ChildProcess version({TOKENBUTLER_SERVER_BINARY, "--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.output(), HasSubstr("tokenbutler-server 0."));
}

TEST(ServerBinaryTest, AMissingOrDamagedModelEndsItWithASentence) {
  ServerProcess missing("/no/such/model.gguf", {});
  EXPECT_EQ(missing.process().Wait(), 1);
  EXPECT_THAT(missing.process().output(), HasSubstr("/no/such/model.gguf"));

  const std::string path = std::filesystem::temp_directory_path() / "tokenbutler-damaged.gguf";
  std::ofstream(path) << "GGUF but then nonsense";
  ServerProcess damaged(path, {});
  EXPECT_EQ(damaged.process().Wait(), 1);
  EXPECT_THAT(damaged.process().output(), HasSubstr("error"));
  std::filesystem::remove(path);
}

TEST(ServerBinaryTest, AttentionFlagsThatContradictEndItBeforeTheModelIsLoaded) {
  ChildProcess child({TOKENBUTLER_SERVER_BINARY, "--model", "/no/such/model.gguf", "--policy",
                      "dense", "--token-budget", "1000"});
  EXPECT_EQ(child.Wait(), 2);
  EXPECT_THAT(child.output(), HasSubstr("attention.token_budget is set"));
}

TEST(ServerBinaryTest, ATakenPortEndsItWithASentence) {
  TestServer other;
  const std::string port = std::to_string(other.port());
  ChildProcess child({TOKENBUTLER_SERVER_BINARY, "--model", "x", "--port", port});
  EXPECT_EQ(child.Wait(), 1);
  EXPECT_THAT(child.output(), HasSubstr(port));
}

class RealServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SmolLm2Path().empty()) GTEST_SKIP() << kNoModel;
  }
  void Start(const std::vector<std::string>& flags) {
    server_ = std::make_unique<ServerProcess>(SmolLm2Path(), flags);
    ASSERT_TRUE(server_->WaitUntilServing()) << server_->process().output();
  }
  void ExpectIdle() {
    EXPECT_TRUE(Eventually([&] { return server_->Metric("open_streams") == 0; }));
    EXPECT_TRUE(Eventually([&] { return server_->Metric("requests_running") == 0; }));
    EXPECT_TRUE(Eventually([&] { return server_->Metric("requests_waiting") == 0; }));
    EXPECT_TRUE(Eventually([&] { return server_->Metric("kv_host_used_bytes") == 0; }));
  }

  std::unique_ptr<ServerProcess> server_;
};

TEST_F(RealServerTest, APolicyThatCannotBeHadEndsTheStart) {
  ServerProcess butler(SmolLm2Path(), {"--policy", "tokenbutler", "--predictor-dir", "none"});
  EXPECT_EQ(butler.process().Wait(), 1);
  EXPECT_THAT(butler.process().output(), HasSubstr("tokenbutler"));
  ServerProcess blocks(SmolLm2Path(), {"--policy", "sketch", "--block-size", "4096"});
  EXPECT_EQ(blocks.process().Wait(), 1);
  EXPECT_THAT(blocks.process().output(), HasSubstr("attention.token_budget is 4096"));
}

// assets/predictors has one of either kind for this model.
TEST_F(RealServerTest, FindsTheShippedPredictors) {
  for (const std::string kind : {"lookahead", "tokenbutler"}) {
    std::vector<std::string> flags = {"--policy", "tokenbutler", "--max-model-len", "1024"};
    if (kind == "tokenbutler") flags.insert(flags.end(), {"--predictor-kind", kind});
    Start(flags);
    const auto stub = v1::InferenceService::NewStub(server_->NewChannel());
    v1::GetServerInfoResponse info;
    grpc::ClientContext info_context;
    ASSERT_TRUE(stub->GetServerInfo(&info_context, {}, &info).ok());
    EXPECT_THAT(info.predictor().path(), HasSubstr(kind + ".safetensors"));
    EXPECT_THAT(info.predictor().reason(), HasSubstr("found by the digest"));

    v1::GenerateRequest request;
    for (int i = 0; i < 600; ++i) request.mutable_token_ids()->add_ids(100 + i * 37 % 5000);
    request.set_max_tokens(8);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_attention()->set_token_budget(200);
    request.mutable_attention()->set_sink_tokens(16);
    request.mutable_attention()->set_local_window(128);
    OpenStream stream(*server_, request);
    ASSERT_TRUE(stream.started());
    const StreamResult result = stream.ReadToTheEnd();
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    // The published kind predicts nothing for layer 0: it attends to 601 to 607 tokens there.
    const double expected = kind == "lookahead" ? 200 : (29 * 200 + 604) / 30.0;
    EXPECT_NEAR(result.finished().at(0).offload().mean_tokens_attended(), expected, 1e-3);
  }
}

TEST_F(RealServerTest, WithoutAttentionFlagsAModelThatSketchCannotServeIsDense) {
  Start({"--block-size", "4096", "--max-model-len", "8192"});
  EXPECT_THAT(server_->process().output(), HasSubstr("attention is dense unless"));
  v1::GetServerInfoResponse info;
  grpc::ClientContext context;
  const auto stub = v1::InferenceService::NewStub(server_->NewChannel());
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.attention().policy(), "dense");
}

// What a client is told is what the metrics count.
TEST_F(RealServerTest, AStagedDeviceTierMovesWhatItCounts) {
  Start({"--offload", "staged", "--device-kv-capacity", "256MiB", "--link-gbps", "25",
         "--link-latency-us", "10", "--max-model-len", "1024", "--attention-setting", "quality"});
  const auto stub = v1::InferenceService::NewStub(server_->NewChannel());
  v1::GetServerInfoResponse info;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.offload().backend(), "staged");
  EXPECT_TRUE(info.offload().link_is_modelled());
  EXPECT_EQ(info.attention().setting(), "quality");

  v1::GenerateRequest request;
  // Long enough that not all of it is in the device tier.
  for (int i = 0; i < 900; ++i) request.mutable_token_ids()->add_ids(100 + i * 37 % 5000);
  request.set_max_tokens(20);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_attention()->set_token_budget(160);
  request.mutable_attention()->set_sink_tokens(4);
  request.mutable_attention()->set_local_window(16);
  OpenStream stream(*server_, request);
  ASSERT_TRUE(stream.started());
  EXPECT_GT(server_->Metric("kv_device_used_bytes"), 0);
  const StreamResult result = stream.ReadToTheEnd();
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ExpectIdle();
  const v1::OffloadStats stats = result.finished().at(0).offload();
  EXPECT_EQ(stats.mean_tokens_attended(), 160);
  EXPECT_GT(stats.host_to_device_bytes(), 0);
  EXPECT_GT(stats.hit_ratio(), 0);
  EXPECT_LT(stats.hit_ratio(), 1);
  const auto bytes = [&](const char* direction, const char* purpose) {
    return server_->Metric(fmt::format("kv_transfer_bytes_total{{direction=\"{}\",purpose=\"{}\"}}",
                                       direction, purpose));
  };
  EXPECT_EQ(bytes("host_to_device", "fetch") + bytes("host_to_device", "prefetch"),
            stats.host_to_device_bytes());
  EXPECT_EQ(bytes("device_to_host", "write_back"), stats.device_to_host_bytes());
  const double lookups = server_->Metric("hot_buffer_lookups_total");
  EXPECT_EQ(lookups, 160 * 30 * 3 * 19) << "budget x layers x KV heads x steps";
  EXPECT_NEAR(server_->Metric("hot_buffer_hits_total") / lookups, stats.hit_ratio(), 1e-12);
  EXPECT_GT(server_->Metric("decode_stall_seconds_sum"), 0);
  EXPECT_GT(server_->Metric("kv_transfer_seconds_sum"), 0);
  EXPECT_EQ(server_->Metric("kv_device_used_bytes"), 0);
}

TEST_F(RealServerTest, AnInt8CacheIsToldAndChargedByItsRowsAndScales) {
  Start({"--kv-cache-dtype", "int8", "--kv-capacity", "64MiB", "--max-model-len", "1024"});
  const auto stub = v1::InferenceService::NewStub(server_->NewChannel());
  v1::GetModelInfoResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub->GetModelInfo(&context, {}, &response).ok());
  const v1::ModelInfo& info = response.model();
  EXPECT_EQ(info.kv_dtype(), "int8");
  // 30 layers x 3 KV heads x (64 + 4) bytes, for keys and for values.
  EXPECT_EQ(info.kv_bytes_per_token(), 30 * 3 * 2 * 68);
  // Blocks of 128 tokens; their rows fill cache lines, so nothing is lost between them.
  const int64_t block_bytes = int64_t{30} * 3 * 2 * 68 * 128;
  EXPECT_EQ(server_->Metric("kv_host_capacity_bytes"),
            (int64_t{64} << 20) / block_bytes * block_bytes);
  OpenStream stream(*server_, Endless(200));
  ASSERT_TRUE(stream.started());
  const double used = server_->Metric("kv_host_used_bytes");
  EXPECT_GE(used, 2 * block_bytes) << "rows of 200 tokens";
  EXPECT_EQ(static_cast<int64_t>(used) % block_bytes, 0);
  const StreamResult result = stream.ReadToTheEnd();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.num_tokens(), 200);
  ExpectIdle();
}

TEST_F(RealServerTest, SigtermLetsStreamsFinish) {
  Start({"--shutdown-grace", "60s", "--log-format", "json"});
  OpenStream stream(*server_, Endless(60));
  ASSERT_TRUE(stream.started());
  server_->process().Signal(SIGTERM);
  const auto stub = v1::InferenceService::NewStub(server_->NewChannel());
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    return stub->GetServerInfo(&context, {}, &info).ok() &&
           info.state() == v1::SERVER_STATE_DRAINING;
  }));
  grpc::ClientContext late;
  const auto refused = stub->Generate(&late, Endless(1));
  v1::GenerateResponse message;
  EXPECT_FALSE(refused->Read(&message));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  const StreamResult result = stream.ReadToTheEnd();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.num_tokens(), 60);
  EXPECT_EQ(server_->process().Wait(), 0);
  EXPECT_THAT(server_->process().output(), HasSubstr("\"message\":\"stopped\""));
}

TEST_F(RealServerTest, SigtermEndsStreamsAfterTheGracePeriod) {
  Start({"--shutdown-grace", "200ms"});
  OpenStream stream(*server_, Endless(8000));
  ASSERT_TRUE(stream.started());
  server_->process().Signal(SIGTERM);
  const StreamResult result = stream.ReadToTheEnd();
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->process().Wait(), 0) << server_->process().output();
}

TEST_F(RealServerTest, ASecondSignalEndsItAtOnce) {
  Start({"--shutdown-grace", "1h"});
  OpenStream stream(*server_, Endless(8000));
  ASSERT_TRUE(stream.started());
  server_->process().Signal(SIGTERM);
  EXPECT_FALSE(server_->process().Wait(absl::Milliseconds(300)));
  server_->process().Signal(SIGINT);
  EXPECT_EQ(server_->process().Wait(absl::Seconds(10)), 128 + SIGINT);
  EXPECT_EQ(stream.ReadToTheEnd().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RealServerTest, SigtermWhileLoading) {
  server_ = std::make_unique<ServerProcess>(SmolLm2Path(), std::vector<std::string>());
  ASSERT_TRUE(server_->WaitUntilListening()) << server_->process().output();
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().Wait(), 0);
}

TEST_F(RealServerTest, AnIdleServerEndsQuicklyDespiteAHealthWatch) {
  Start({});
  const auto stub = grpc::health::v1::Health::NewStub(server_->NewChannel());
  grpc::ClientContext context;
  const auto watch = stub->Watch(&context, {});
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  server_->process().Signal(SIGTERM);
  EXPECT_EQ(server_->process().Wait(absl::Seconds(10)), 0);
}

TEST_F(RealServerTest, AKilledClientStopsTheWork) {
  Start({});
  ChildProcess client({TOKENBUTLER_CLI_BINARY, "generate", "--server", server_->address(),
                       "--ignore-eos", "Once upon a time"});
  ASSERT_TRUE(Eventually([&] { return server_->Metric("requests_running") == 1; }));
  client.Signal(SIGKILL);
  ExpectIdle();
  EXPECT_EQ(server_->Metric("requests_total{code=\"CANCELLED\"}"), 1);
}

TEST_F(RealServerTest, Client) {
  Start({});
  const std::string address = server_->address();
  ChildProcess generate({TOKENBUTLER_CLI_BINARY, "generate", "--server", address, "--chat",
                         "Say hello.", "--temperature", "0", "--max-tokens", "8"});
  EXPECT_EQ(generate.Wait(), 0);
  EXPECT_THAT(generate.output(), HasSubstr("tokens/s]"));
  ChildProcess json({TOKENBUTLER_CLI_BINARY, "generate", "--server", address, "--json",
                     "--no-stream", "--max-tokens", "4", "-n", "2", "Hello"});
  EXPECT_EQ(json.Wait(), 0);
  EXPECT_THAT(json.output(), HasSubstr("\"completion_tokens\": 4"));
  ChildProcess tokenize({TOKENBUTLER_CLI_BINARY, "tokenize", "--server", address, "Hello world"});
  EXPECT_EQ(tokenize.Wait(), 0);
  EXPECT_THAT(tokenize.output(), HasSubstr(" world\n"));
  ChildProcess info({TOKENBUTLER_CLI_BINARY, "info", "--server", address});
  EXPECT_EQ(info.Wait(), 0);
  EXPECT_THAT(info.output(), HasSubstr("30 layers"));
  ChildProcess health({TOKENBUTLER_CLI_BINARY, "health", "--server", address});
  EXPECT_EQ(health.Wait(), 0);
  EXPECT_THAT(health.output(), HasSubstr("SERVING"));

  ChildProcess refused(
      {TOKENBUTLER_CLI_BINARY, "generate", "--server", address, "--max-tokens", "-5", "Hello"});
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.output(), HasSubstr("max_tokens is -5"));
  ChildProcess usage({TOKENBUTLER_CLI_BINARY, "generate", "--no-such-flag"});
  EXPECT_EQ(usage.Wait(), 2);
  ChildProcess nobody({TOKENBUTLER_CLI_BINARY, "health", "--server", "127.0.0.1:1"});
  EXPECT_EQ(nobody.Wait(), 3);
  ChildProcess late({TOKENBUTLER_CLI_BINARY, "generate", "--server", address, "--ignore-eos",
                     "--timeout", "0.3", "Hello"});
  EXPECT_EQ(late.Wait(), 4);
  ChildProcess interrupted({TOKENBUTLER_CLI_BINARY, "generate", "--server", address, "--ignore-eos",
                            "Once upon a time"});
  ASSERT_TRUE(Eventually([&] { return server_->Metric("requests_running") == 1; }));
  interrupted.Signal(SIGINT);
  EXPECT_EQ(interrupted.Wait(), 130);
  ExpectIdle();
}

}  // namespace
}  // namespace tokenbutler
