// Counts what the engine thread allocates per decoded token in a whole server with real clients:
// our own code, gRPC, protobuf, LibTorch, everything that asks malloc. A program of its own,
// because counting replaces malloc.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/compute_pool.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "engine/models/rope.h"
#include "engine/step_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/weights/loader.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "offload/block_pool.h"
#include "offload/kv_store.h"
#include "server/grpc_server.h"
#include "server/inference_service.h"
#include "server/lifecycle.h"
#include "server/open_streams.h"
#include "server/request_preparer.h"
#include "server/stream_queue.h"
#include "server/write_threads.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"
#include "tokenbutler/v1/inference.grpc.pb.h"

namespace tokenbutler {
namespace {

constexpr int kPromptTokens = 20;
constexpr int kNewTokens = 480;
// A client may be so many tokens behind in these tests: on a busy machine it could be any number.
constexpr int kMostBehind = 8;

// How many chunks a client has received.
class Received {
 public:
  void Add() {
    MutexLock lock(&mutex_);
    ++count_;
    changed_.SignalAll();
  }
  void WaitFor(int count) {
    MutexLock lock(&mutex_);
    while (count_ < count) {
      if (!changed_.WaitWithTimeout(&mutex_, absl::Seconds(30))) continue;
      ADD_FAILURE() << "the client has received " << count_ << " chunks, " << count << " expected";
      return;
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Passes everything on to a stream's own sink, and counts the engine thread's allocations from its
// chunk `from` to its chunk `to`.
class CountingSink : public TokenSink {
 public:
  CountingSink(std::shared_ptr<TokenSink> sink, Received* received, int from, int to)
      : sink_(std::move(sink)), received_(received), from_(from), to_(to) {}

  void OnProgress(const PrefillProgress& progress) override { sink_->OnProgress(progress); }
  void OnPromptLogprobs(std::vector<PositionLogprobs> logprobs) override {
    sink_->OnPromptLogprobs(std::move(logprobs));
  }
  void OnLogits(int position, absl::Span<const float> logits) override {
    sink_->OnLogits(position, logits);
  }
  void OnChunk(const OutputChunk& chunk) override {
    if (++num_chunks_ == from_) counter_.emplace();
    received_->WaitFor(num_chunks_ - kMostBehind);
    sink_->OnChunk(chunk);
    if (num_chunks_ == to_) counted_ = static_cast<int>(counter_->num_allocations());
  }
  void OnFinished(FinishedOutput output) override { sink_->OnFinished(std::move(output)); }
  void OnDone(absl::Status status) override { sink_->OnDone(std::move(status)); }

  // After the engine is idle. -1: there were fewer chunks.
  int counted() const { return counted_; }

 private:
  const std::shared_ptr<TokenSink> sink_;
  Received* const received_;
  const int from_, to_;
  std::optional<AllocationCounter> counter_;
  int num_chunks_ = 0;
  int counted_ = -1;
};

// The engine with a CountingSink before every stream. Requests are handed on together once
// `num_requests` have come, so that none is admitted while others are counted. Request ids are the
// streams' numbers.
class CountingEngine : public Engine {
 public:
  explicit CountingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  void Expect(int num_requests, int from, int to) {
    MutexLock lock(&mutex_);
    received_ = std::vector<Received>(static_cast<size_t>(num_requests));
    sinks_.clear();
    waiting_.clear();
    from_ = from;
    to_ = to;
  }
  Received& received(int stream) { return received_[static_cast<size_t>(stream)]; }
  int MostCounted() const {
    MutexLock lock(&mutex_);
    EXPECT_EQ(sinks_.size(), received_.size());
    int most = 0;
    for (const auto& sink : sinks_) {
      EXPECT_GE(sink->counted(), 0) << "too few chunks";
      most = std::max(most, sink->counted());
    }
    return most;
  }

  absl::Status Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) override {
    MutexLock lock(&mutex_);
    Received* received = &received_[std::stoul(request.request_id)];
    sinks_.push_back(std::make_shared<CountingSink>(std::move(sink), received, from_, to_));
    waiting_.push_back(std::move(request));
    if (waiting_.size() < received_.size()) return absl::OkStatus();
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const absl::Status submitted = engine_->Submit(std::move(waiting_[i]), sinks_[i]);
      EXPECT_TRUE(submitted.ok()) << submitted;
    }
    return absl::OkStatus();
  }
  bool Abort(const std::string& id, absl::Status reason) override {
    return engine_->Abort(id, std::move(reason));
  }
  absl::StatusOr<BlockTable> HeldBlocks(const std::string& name) const override {
    return engine_->HeldBlocks(name);
  }
  bool DropPrompt(const std::string& name) override { return engine_->DropPrompt(name); }
  EngineLoad load() const override { return engine_->load(); }
  void StartDraining() override { engine_->StartDraining(); }
  bool WaitUntilIdle(absl::Duration timeout) override { return engine_->WaitUntilIdle(timeout); }
  void AbortAll(absl::Status reason) override { engine_->AbortAll(std::move(reason)); }

 private:
  mutable Mutex mutex_;
  std::vector<Received> received_;  // [num_requests]
  std::vector<std::shared_ptr<CountingSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  std::vector<GenerationRequest> waiting_ ABSL_GUARDED_BY(mutex_);
  int from_ ABSL_GUARDED_BY(mutex_) = 0;
  int to_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Engine> engine_;  // last: its thread calls the sinks
};

// The whole server over a real model, put together as main() does.
class StreamAllocationTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteTinyModel(folder_.path());
    LoadOptions load;
    load.compute_dtype = DType::kF32;
    LoadedModel model = Must(LoadModel(folder_.path().string(), load));
    const auto& files = std::get<HfTokenizerFiles>(model.tokenizer);
    tokenizer_ = Must(Tokenizer::Create(
        Must(ReadHfTokenizer(files.tokenizer_json, files.tokenizer_config_json)).spec));
    auto served = std::make_shared<ServedModel>();
    served->name = "tiny";
    served->config = model.config;
    served->max_model_len = kTinyModelLen;
    served->max_num_seqs = 8;
    served->tokenizer = tokenizer_.get();
    StartEngine(std::move(model));
    served->engine = engine_.get();
    lifecycle_.SetServing(std::move(served));
    server_ = Must(GrpcServer::Start({.host = "127.0.0.1", .port = 0}, &service_));
  }
  void TearDown() override { server_->Shutdown(absl::Seconds(5)); }

  void StartEngine(LoadedModel model) {
    KvLayout layout = KvLayoutFor(model.config, model.compute_dtype);
    layout.block_size = 32;  // of which these contexts have several
    kv_store_ = Must(KvStore::Create(layout, {.capacity_bytes = 16 << 20}, staged_));
    block_pool_ = std::make_unique<BlockPool>(layout, kv_store_->num_blocks());
    const Rope rope =
        Must(Rope::Create(model.config.rope, model.config.head_dim, model.config.max_position));
    StepRunnerOptions options;
    options.recall_probe_rate = 0.1;
    options.predictor = std::make_shared<Predictor>(RandomPredictor(
        PredictorKind::kTokenButler, FingerprintOf(model.config, rope), /*projected_dim=*/8,
        /*layers_per_predictor=*/1));
    runner_ = Must(StepRunner::Create(std::move(model.config), std::move(model.weights),
                                      kv_store_.get(), &compute_pool_, options));
    EngineConfig config;
    config.max_model_len = kTinyModelLen;
    engine_ = std::make_unique<CountingEngine>(
        Must(Engine::Create(config, {.runner = runner_.get(),
                                     .tokenizer = tokenizer_.get(),
                                     .block_pool = block_pool_.get(),
                                     .clock = &clock_,
                                     .metrics = &metrics_,
                                     .compute_pool = &compute_pool_})));
  }

  template <typename T>
  static T Must(absl::StatusOr<T> result) {
    if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
    return *std::move(result);
  }

  // The token whose text is longest. Memory that is used again has to grow for it first; a sequence
  // that met it late would count that.
  int32_t LongestToken() const {
    int32_t longest = 0;
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (!tokenizer_->IsSpecial(id) &&
          tokenizer_->TokenBytes(id).size() > tokenizer_->TokenBytes(longest).size()) {
        longest = id;
      }
    }
    return longest;
  }

  // Greedy, without log-probabilities; a chunk per token, because ids are asked for.
  v1::GenerateRequest Greedy(int number, const v1::AttentionOptions& attention) const {
    v1::GenerateRequest request;
    request.set_request_id(std::to_string(number));
    for (int i = 0; i < kPromptTokens; ++i) {
      request.mutable_token_ids()->add_ids(5 + number * 31 + i * 7);
    }
    request.set_max_tokens(kNewTokens);
    request.mutable_sampling()->set_temperature(0);
    (*request.mutable_sampling()->mutable_logit_bias())[LongestToken()] = 100;
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_output()->set_return_token_ids(true);
    request.mutable_output()->set_return_progress(true);
    *request.mutable_attention() = attention;
    return request;
  }

  // A client: reads the stream `number` to its end.
  void ReadStream(int number, const v1::AttentionOptions& attention) {
    const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                             grpc::InsecureChannelCredentials());
    const auto stub = v1::InferenceService::NewStub(channel);
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, Greedy(number, attention));
    v1::GenerateResponse message;
    size_t text_bytes = 0;
    int num_tokens = 0;
    while (reader->Read(&message)) {
      text_bytes += message.chunk().text().size();
      num_tokens += message.chunk().token_ids_size();
      for (int i = 0; i < message.chunk().token_ids_size(); ++i) {
        engine_->received(number).Add();
      }
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(num_tokens, kNewTokens);
    EXPECT_GT(text_bytes, size_t{kNewTokens} * 15) << "short texts need no memory";
  }

  // Allocations of the engine thread from each stream's chunk `from` to its chunk 460; of several
  // streams, which are not at the same token, to 400: before the first of them ends.
  int AllocationsOf(int num_streams, int from, const v1::AttentionOptions& attention) {
    engine_->Expect(num_streams, from, /*to=*/num_streams == 1 ? 460 : 400);
    std::vector<std::thread> clients;
    for (int i = 0; i < num_streams; ++i) {
      clients.emplace_back([this, i, &attention] { ReadStream(i, attention); });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_TRUE(engine_->WaitUntilIdle(absl::Seconds(60)));
    EXPECT_TRUE(streams_.WaitUntilEmpty(absl::Seconds(60))) << "ids are used again";
    return engine_->MostCounted();
  }

  std::optional<KvStore::StagedOptions> staged_;  // set before SetUp
  TemporaryFolder folder_;
  RealClock clock_;
  Metrics metrics_{BuildLabels{}};
  ComputePool compute_pool_{2};
  WriteThreads write_threads_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvStore> kv_store_;
  std::unique_ptr<BlockPool> block_pool_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<CountingEngine> engine_;
  Lifecycle lifecycle_;
  OpenStreams streams_{&clock_, absl::Seconds(1)};
  RequestPreparer preparer_{{}};
  InferenceService service_{{.lifecycle = &lifecycle_,
                             .preparer = &preparer_,
                             .streams = &streams_,
                             .write_threads = &write_threads_,
                             .metrics = &metrics_,
                             .clock = &clock_},
                            {}};
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(StreamAllocationTest, OneStreamAllocatesNothing) {
  EXPECT_EQ(AllocationsOf(1, /*from=*/2, {}), 0);
}

TEST_F(StreamAllocationTest, EightStreamsAllocateNothing) {
  EXPECT_EQ(AllocationsOf(8, /*from=*/200, {}), 0);
}

// From the second token on: through the contexts that the budget still holds and those that it
// does not, over blocks of keys that become complete.
struct SparseCase {
  const char* policy;
  std::optional<int> sink_tokens = std::nullopt;
  std::optional<int> local_window = std::nullopt;
  std::optional<float> scan_fraction = std::nullopt;  // with a scan of all every four steps
  // Later for policies that make something of the prompt once, when the budget is first exceeded.
  int from = 2;
};

class SparseStreamAllocationTest : public StreamAllocationTest,
                                   public testing::WithParamInterface<SparseCase> {};

TEST_P(SparseStreamAllocationTest, AllocatesNothing) {
  v1::AttentionOptions attention;
  attention.set_policy(GetParam().policy);
  attention.set_token_budget(64);
  if (GetParam().sink_tokens) attention.set_sink_tokens(*GetParam().sink_tokens);
  if (GetParam().local_window) attention.set_local_window(*GetParam().local_window);
  if (GetParam().scan_fraction) {
    attention.set_scan_fraction(*GetParam().scan_fraction);
    attention.set_prediction_interval(4);
  }
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(AllocationsOf(1, GetParam().from, attention), 0);
  }
  EXPECT_EQ(AllocationsOf(3, /*from=*/200, attention), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, SparseStreamAllocationTest,
    testing::Values(
        SparseCase{.policy = "sketch", .sink_tokens = 4, .local_window = 16},
        SparseCase{
            .policy = "sketch", .sink_tokens = 4, .local_window = 16, .scan_fraction = 0.25f},
        SparseCase{.policy = "tokenbutler", .sink_tokens = 4, .local_window = 16},
        SparseCase{.policy = "pca", .sink_tokens = 4, .local_window = 16, .from = 60},
        SparseCase{.policy = "quest", .sink_tokens = 0, .local_window = 16},
        SparseCase{.policy = "exact", .sink_tokens = 4, .local_window = 16},
        SparseCase{.policy = "snapkv", .local_window = 16, .from = 60}, SparseCase{.policy = "h2o"},
        SparseCase{.policy = "streaming_llm", .sink_tokens = 4},
        SparseCase{.policy = "xkv", .from = 60},
        SparseCase{.policy = "random", .sink_tokens = 4, .local_window = 16}),
    [](const auto& test) {
      return std::string(test.param.policy) + (test.param.scan_fraction ? "_partial_scans" : "");
    });

class StagedStreamAllocationTest : public StreamAllocationTest {
 protected:
  void SetUp() override {
    staged_ = KvStore::StagedOptions{.device_capacity_bytes = 4 << 20};
    StreamAllocationTest::SetUp();
  }
};

// Lists of transfers grow until as many were under way as ever will be; that depends on how fast
// the transfer workers are.
TEST_F(StagedStreamAllocationTest, AllocatesNothingOnceTransfersHaveTheirLists) {
  v1::AttentionOptions sketch;
  sketch.set_policy("sketch");
  sketch.set_token_budget(64);
  sketch.set_sink_tokens(4);
  sketch.set_local_window(16);
  v1::AttentionOptions h2o;
  h2o.set_policy("h2o");
  h2o.set_token_budget(64);
  for (const v1::AttentionOptions& attention : {sketch, h2o}) {
    EXPECT_LE(AllocationsOf(1, /*from=*/60, attention), 20);
    EXPECT_LE(AllocationsOf(1, /*from=*/60, attention), 8);
  }
}

// What a client that stops reading for a while costs: nothing for a few dozen tokens, then memory
// that doubles.
TEST(StreamQueueAllocationTest, ATokenForASlowClientAllocatesNothing) {
  StreamQueue queue(size_t{64} << 20, /*num_completions=*/2);
  OutputChunk chunk;
  chunk.text = "sixteen letters.";
  chunk.token_ids = {7};
  const auto allocations = [&](int num_tokens) {
    const AllocationCounter counter;
    for (int i = 0; i < num_tokens; ++i) {
      chunk.index = i % 2;
      queue.Push(chunk);
    }
    return counter.num_allocations();
  };
  EXPECT_EQ(allocations(40), 0);
  EXPECT_LE(allocations(20'000), 40);
}

}  // namespace
}  // namespace tokenbutler
