#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "engine/admission.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "gtest/gtest.h"
#include "offload/block_pool.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_tokenizer.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/scripted_runner.h"

namespace tokenbutler {

inline double CounterValue(const prometheus::Counter& counter) { return counter.Value(); }
inline uint64_t SampleCount(const prometheus::Histogram& histogram) {
  return histogram.Collect().histogram.sample_count;
}
inline double SampleSum(const prometheus::Histogram& histogram) {
  return histogram.Collect().histogram.sample_sum;
}

// An engine over a ScriptedRunner, with small blocks and chunks and a clock that stands still.
class EngineTest : public testing::Test {
 protected:
  static constexpr int kBlockSize = 4;
  static constexpr int kChunk = 8;
  static constexpr int kNumBlocks = 256;

  EngineTest()
      : pool(TestLayout(), kNumBlocks),
        runner(TestLayout(), kNumBlocks, FakeTokenizer::kVocabSize),
        metrics(BuildLabels{}) {
    config.max_model_len = 400;
    config.prefill_chunk_tokens = kChunk;
    config.max_num_seqs = 32;
  }

  static KvLayout TestLayout() {
    KvLayout layout;
    layout.num_layers = layout.num_kv_heads = layout.head_dim = 1;
    layout.block_size = kBlockSize;
    return layout;
  }

  void Start() {
    auto created = Engine::Create(config, {.runner = &runner,
                                           .tokenizer = &tokenizer,
                                           .block_pool = &pool,
                                           .clock = clock_in_use,
                                           .metrics = &metrics,
                                           .compute_pool = compute_pool});
    ASSERT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }

  // Greedy, token ids in the chunks, a prompt of its own per `salt`.
  static GenerationRequest Ask(std::string id, int prompt_tokens, int max_tokens, int salt = 0) {
    GenerationRequest request;
    request.request_id = std::move(id);
    for (int i = 0; i < prompt_tokens; ++i) {
      request.prompt_token_ids.push_back(1 + (i * 7 + salt * 11) % 60);
    }
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.stop.ignore_eos = true;
    request.output.return_token_ids = true;
    return request;
  }

  // Submits; the request must be accepted.
  std::shared_ptr<RecordingSink> Submit(GenerationRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    Submit(std::move(request), sink);
    return sink;
  }
  void Submit(GenerationRequest request, const std::shared_ptr<RecordingSink>& sink) {
    const absl::Status status = engine->Submit(std::move(request), sink);
    ASSERT_TRUE(status.ok()) << status;
  }

  // The tokens that completion `index` must have: its sampler alone on the model alone, without
  // stops. `seed` as FinishedOutput reports it.
  std::vector<int32_t> Expected(const GenerationRequest& request, uint64_t seed, int index = 0) {
    AdmissionLimits limits;
    limits.vocab_size = FakeTokenizer::kVocabSize;
    limits.eos_ids = tokenizer.eos_ids();
    auto sampler =
        Sampler::Create(MakeSamplerOptions(request, limits, seed, index), request.prompt_token_ids);
    EXPECT_TRUE(sampler.ok()) << sampler.status();
    std::vector<int32_t> tokens = request.prompt_token_ids;
    std::vector<int32_t> sampled;
    SamplingScratch scratch;
    while (static_cast<int>(sampled.size()) < request.max_tokens) {
      std::vector<float> logits = runner.LogitsAfter(tokens);
      const auto token = sampler->Sample(absl::MakeSpan(logits), &scratch);
      EXPECT_TRUE(token.ok()) << token.status();
      sampled.push_back(token->token_id);
      tokens.push_back(token->token_id);
    }
    return sampled;
  }

  // After everything is over: nothing is held, the gauges say so.
  void ExpectIdle() {
    ASSERT_TRUE(engine->WaitUntilIdle(absl::Seconds(60)));
    const EngineLoad load = engine->load();
    EXPECT_EQ(load.requests_running, 0);
    EXPECT_EQ(load.requests_waiting, 0);
    EXPECT_EQ(load.waiting_prompt_tokens, 0);
    EXPECT_EQ(load.kv_used_bytes, 0);
    EXPECT_EQ(metrics.requests_running.Value(), 0);
    EXPECT_EQ(metrics.requests_waiting.Value(), 0);
    EXPECT_EQ(metrics.kv_host_used_bytes.Value(), 0);
    EXPECT_EQ(pool.num_free(), kNumBlocks);
    EXPECT_EQ(runner.num_states(), 0);
  }

  EngineConfig config;
  FakeClock clock;
  Clock* clock_in_use = &clock;
  FakeTokenizer tokenizer;
  BlockPool pool;
  ScriptedRunner runner;
  Metrics metrics;
  ComputePool* compute_pool = nullptr;
  std::unique_ptr<Engine> engine;  // last: its thread uses all of the above
};

}  // namespace tokenbutler
