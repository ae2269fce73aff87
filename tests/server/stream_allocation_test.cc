// Counts what the engine thread allocates per decoded token on the server's whole way, from the
// model's kernels to the bytes of a message: everything but gRPC itself. A program of its own,
// because counting replaces operator new.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/compute_pool.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "engine/step_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/weights/loader.h"
#include "gtest/gtest.h"
#include "offload/block_pool.h"
#include "offload/kv_store.h"
#include "server/proto_convert.h"
#include "server/stream_queue.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"

namespace tokenbutler {
namespace {

// What StreamWriter does with the engine's events, without a call to write them to. Between its
// chunks `from` and `to` it counts the thread's allocations.
class EncodingSink : public TokenSink {
 public:
  EncodingSink(const Tokenizer* tokenizer, int from, int to)
      : tokenizer_(tokenizer), from_(from), to_(to) {}

  void OnProgress(const PrefillProgress& progress) override {
    queue_.Push(progress);
    Encode();
  }
  void OnPromptLogprobs(std::vector<PositionLogprobs>) override {}
  void OnLogits(int, absl::Span<const float>) override {}
  void OnChunk(const OutputChunk& chunk) override {
    if (++num_chunks_ == from_) counter_.emplace();
    text_bytes_ += chunk.text.size();
    queue_.Push(chunk);
    Encode();
    if (num_chunks_ == to_) counted_ = static_cast<int>(counter_->num_allocations());
  }
  void OnFinished(FinishedOutput output) override {
    queue_.Push(std::move(output));
    Encode();
  }
  void OnDone(absl::Status status) override { status_ = std::move(status); }

  // After the engine is idle.
  int counted() const { return counted_; }  // -1: there were fewer chunks
  size_t text_bytes() const { return text_bytes_; }
  size_t wire_bytes() const { return wire_bytes_; }
  const absl::Status& status() const { return status_; }

 private:
  void Encode() {
    while (queue_.Pop(&event_)) {
      ToProto(event_, "id", tokenizer_, &message_);
      const size_t bytes = message_.ByteSizeLong();
      ASSERT_LE(bytes, sizeof(buffer_));
      message_.SerializeWithCachedSizesToArray(buffer_);
      wire_bytes_ += bytes;
    }
  }

  const Tokenizer* const tokenizer_;
  const int from_;
  const int to_;
  StreamQueue queue_{size_t{1} << 20};
  StreamEvent event_;
  v1::GenerateResponse message_;
  uint8_t buffer_[4096];
  std::optional<AllocationCounter> counter_;
  int num_chunks_ = 0;
  int counted_ = -1;
  size_t text_bytes_ = 0;
  size_t wire_bytes_ = 0;
  absl::Status status_ = absl::UnknownError("not done");
};

// An engine over a real model, put together as main() does.
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
    const KvLayout layout = KvLayoutFor(model.config, model.compute_dtype);
    kv_store_ = Must(KvStore::Create(layout, {.capacity_bytes = 16 << 20}));
    block_pool_ = std::make_unique<BlockPool>(layout, kv_store_->num_blocks());
    runner_ = Must(StepRunner::Create(std::move(model.config), std::move(model.weights),
                                      kv_store_.get(), &compute_pool_));
    EngineConfig config;
    config.max_model_len = kTinyModelLen;
    engine_ = Must(Engine::Create(config, {.runner = runner_.get(),
                                           .tokenizer = tokenizer_.get(),
                                           .block_pool = block_pool_.get(),
                                           .clock = &clock_,
                                           .metrics = &metrics_,
                                           .compute_pool = &compute_pool_}));
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
  GenerationRequest Greedy(int number) const {
    GenerationRequest request;
    request.request_id = std::to_string(number);
    for (int i = 0; i < 20; ++i) request.prompt_token_ids.push_back(5 + number * 31 + i * 7);
    request.max_tokens = 480;
    request.sampling.temperature = 0;
    request.sampling.logit_bias = {{LongestToken(), 100.0f}};
    request.stop.ignore_eos = true;
    request.output.return_token_ids = true;
    request.output.return_progress = true;
    return request;
  }

  // Allocations of the engine thread while each of the requests decodes 400 tokens.
  int AllocationsOf(int num_requests) {
    std::vector<std::shared_ptr<EncodingSink>> sinks;
    for (int i = 0; i < num_requests; ++i) {
      sinks.push_back(std::make_shared<EncodingSink>(tokenizer_.get(), 60, 460));
      EXPECT_TRUE(engine_->Submit(Greedy(i), sinks.back()).ok());
    }
    EXPECT_TRUE(engine_->WaitUntilIdle(absl::Seconds(60)));
    int most = 0;
    for (const auto& sink : sinks) {
      EXPECT_TRUE(sink->status().ok()) << sink->status();
      EXPECT_GE(sink->counted(), 0) << "too few chunks";
      EXPECT_GT(sink->text_bytes(), 480 * 15) << "short texts need no memory";
      EXPECT_GT(sink->wire_bytes(), sink->text_bytes());
      most = std::max(most, sink->counted());
    }
    return most;
  }

  TemporaryFolder folder_;
  RealClock clock_;
  Metrics metrics_{BuildLabels{}};
  ComputePool compute_pool_{2};
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvStore> kv_store_;
  std::unique_ptr<BlockPool> block_pool_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(StreamAllocationTest, OneStreamAllocatesNothing) { EXPECT_EQ(AllocationsOf(1), 0); }

TEST_F(StreamAllocationTest, EightStreamsAllocateNothing) { EXPECT_EQ(AllocationsOf(8), 0); }

}  // namespace
}  // namespace tokenbutler
