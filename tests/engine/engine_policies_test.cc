// Sparse attention through the engine and a whole model: what a request's tokens depend on, and
// what it leaves behind.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/block_pool.h"
#include "tests/testing/loaded_runner.h"
#include "tests/testing/model_cache.h"
#include "tests/testing/recording_sink.h"

namespace tokenbutler {
namespace {

// Any vocabulary; tokens are "[id]".
class NumberTokenizer : public Tokenizer {
 public:
  explicit NumberTokenizer(int vocab_size) {
    for (int id = 0; id < vocab_size; ++id) bytes_.push_back(fmt::format("[{}]", id));
  }
  std::vector<int32_t> Encode(std::string_view, EncodeOptions) const override { return {}; }
  std::string Decode(absl::Span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += bytes_[id];
    return text;
  }
  std::string_view TokenBytes(int32_t id) const override { return bytes_[id]; }
  bool IsSpecial(int32_t) const override { return false; }
  int vocab_size() const override { return static_cast<int>(bytes_.size()); }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  absl::Span<const int32_t> eos_ids() const override { return {}; }
  bool strips_leading_space() const override { return false; }

 private:
  std::vector<std::string> bytes_;
};

struct ModelCase {
  std::string name;
  std::string path;
  std::string how_to_get_it;
  int prompt_tokens;  // of the longest prompt
  int token_budget;
  int new_tokens;
};

class EnginePoliciesTest : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GetParam().path)) {
      GTEST_SKIP() << GetParam().path << " is not there: " << GetParam().how_to_get_it << ".";
    }
    Start(std::nullopt);
  }

  // An engine over the model, in place of the one before.
  void Start(const std::optional<KvStore::StagedOptions>& staged) {
    engine_.reset();
    LoadedRunner::Options options;
    options.num_blocks = 1500;
    options.staged = staged;
    auto loaded = LoadedRunner::Load(GetParam().path, options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
    tokenizer_ = std::make_unique<NumberTokenizer>(model_->vocab_size());
    pool_ =
        std::make_unique<BlockPool>(model_->kv_store().layout(), model_->kv_store().num_blocks());
    EngineConfig config;
    config.max_model_len = 2048;
    config.prefill_chunk_tokens = 64;
    auto engine = Engine::Create(config, {.runner = &model_->runner(),
                                          .tokenizer = tokenizer_.get(),
                                          .block_pool = pool_.get(),
                                          .clock = &clock_,
                                          .metrics = &metrics_});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // A prompt without a pattern.
  GenerationRequest Ask(int prompt_tokens, const AttentionParams& attention, uint32_t seed) {
    GenerationRequest request;
    request.request_id = fmt::format("r{}", ++num_requests_);
    uint32_t state = seed * 2654435761u + 1;
    for (int i = 0; i < prompt_tokens; ++i) {
      state = state * 1664525u + 1013904223u;
      request.prompt_token_ids.push_back(
          static_cast<int32_t>((state >> 12) % static_cast<uint32_t>(model_->vocab_size())));
    }
    request.max_tokens = GetParam().new_tokens;
    request.sampling.temperature = 0;
    request.output.return_token_ids = true;
    request.attention = attention;
    return request;
  }

  // What the case's budget leaves room for.
  AttentionParams Params(AttentionPolicy policy) const {
    AttentionParams params = DefaultParams(policy);
    params.token_budget = GetParam().token_budget;
    if (params.sink_tokens > 0) params.sink_tokens = 4;
    params.local_window = std::min(params.local_window, 16);
    return params;
  }

  // Dense, and every policy that this model can be run with by itself, in several ways.
  std::vector<AttentionParams> EveryAttention() const {
    std::vector<AttentionParams> all = {AttentionParams{}};
    for (const char* name : {"tokenbutler", "sketch", "pca", "quest", "exact", "snapkv", "h2o",
                             "streaming_llm", "xkv", "random"}) {
      AttentionParams params = Params(*ParsePolicy(name));
      if (!model_->runner().CheckAttention(params).ok()) continue;
      all.push_back(params);
    }
    AttentionParams rarely = Params(AttentionPolicy::kSketch);
    rarely.prediction_interval = 5;
    rarely.candidates = GetParam().token_budget + 20;
    all.push_back(rarely);
    AttentionParams wide = Params(AttentionPolicy::kExact);
    wide.neighbours = 1;
    wide.dense_first_layer = true;
    all.push_back(wide);
    return all;
  }

  std::shared_ptr<RecordingSink> Submit(const GenerationRequest& request) {
    auto sink = std::make_shared<RecordingSink>();
    const absl::Status status = engine_->Submit(request, sink);
    EXPECT_TRUE(status.ok()) << status;
    return sink;
  }
  std::vector<int32_t> Run(GenerationRequest request) {
    const auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->WaitDone(absl::Minutes(5)));
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink->token_ids();
  }
  // At least eight requests, every attention among them, prompts of different lengths.
  std::vector<GenerationRequest> MixedRequests() {
    const std::vector<AttentionParams> all = EveryAttention();
    EXPECT_GE(all.size(), 6);
    std::vector<GenerationRequest> requests;
    for (size_t i = 0; i < std::max<size_t>(8, all.size()); ++i) {
      const int prompt = GetParam().prompt_tokens - 7 * static_cast<int>(i);
      requests.push_back(Ask(prompt, all[i % all.size()], static_cast<uint32_t>(i)));
    }
    return requests;
  }
  std::vector<std::vector<int32_t>> RunOneByOne(std::vector<GenerationRequest> requests) {
    std::vector<std::vector<int32_t>> tokens;
    for (GenerationRequest& request : requests) {
      tokens.push_back(Run(request));
      EXPECT_EQ(tokens.back().size(), GetParam().new_tokens);
    }
    return tokens;
  }
  void ExpectTogether(const std::vector<GenerationRequest>& requests,
                      const std::vector<std::vector<int32_t>>& expected) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (const GenerationRequest& request : requests) sinks.push_back(Submit(request));
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(sinks[i]->WaitDone(absl::Minutes(5)));
      EXPECT_TRUE(sinks[i]->status().ok()) << sinks[i]->status();
      EXPECT_EQ(sinks[i]->token_ids(), expected[i]) << PolicyName(requests[i].attention.policy);
    }
  }
  void ExpectIdle() {
    ASSERT_TRUE(engine_->WaitUntilIdle(absl::Minutes(1)));
    EXPECT_EQ(pool_->num_used(), 0);
    EXPECT_EQ(metrics_.kv_device_used_bytes.Value(), 0);
  }

  std::unique_ptr<LoadedRunner> model_;
  std::unique_ptr<NumberTokenizer> tokenizer_;
  std::unique_ptr<BlockPool> pool_;
  RealClock clock_;
  Metrics metrics_{BuildLabels{}};
  std::unique_ptr<Engine> engine_;
  int num_requests_ = 0;
};

TEST_P(EnginePoliciesTest, AMixedBatchGivesTheTokensThatEachGivesAlone) {
  std::vector<GenerationRequest> requests = MixedRequests();
  const std::vector<std::vector<int32_t>> alone = RunOneByOne(requests);
  ExpectTogether(requests, alone);
  ExpectIdle();
  for (GenerationRequest& request : requests) request.attention = {};
  EXPECT_NE(RunOneByOne(requests), alone) << "no policy has left anything out";
  ExpectIdle();
}

// The device tier is a memory of its own; whatever is fetched when, beside whomever, each request
// gets the tokens that it gets alone where the device is the host.
TEST_P(EnginePoliciesTest, AMixedBatchOverStagedGivesTheTokensOfEachAloneOverDirect) {
  const std::vector<GenerationRequest> requests = MixedRequests();
  const std::vector<std::vector<int32_t>> alone = RunOneByOne(requests);
  Start(KvStore::StagedOptions{.device_capacity_bytes = int64_t{1} << 30});
  ExpectTogether(requests, alone);
  ExpectIdle();
  EXPECT_GT(metrics_.kv_transfer_bytes_total.fetch.Value(), 0) << "nothing was fetched";
  EXPECT_GT(metrics_.kv_transfer_bytes_total.write_back.Value(), 0) << "nothing went back";

  // So small that requests have to wait for room in it: a block's worth more than the largest
  // needs.
  int64_t largest = 0;
  for (const GenerationRequest& request : requests) {
    if (!request.attention.sparse()) continue;
    const auto state = model_->NewState(request.attention);
    largest = std::max(largest, model_->runner().device_kv_used_bytes());
  }
  Start(KvStore::StagedOptions{.device_capacity_bytes = largest + (1 << 16)});
  ExpectTogether(requests, alone);
  ExpectIdle();
}

TEST_P(EnginePoliciesTest, ABudgetForTheWholeContextGivesTheDenseTokens) {
  const int prompt = GetParam().prompt_tokens;
  const std::vector<int32_t> dense = Run(Ask(prompt, {}, 1));
  for (AttentionParams params : EveryAttention()) {
    if (!params.sparse()) continue;
    params.token_budget = prompt + GetParam().new_tokens;
    if (params.candidates > 0) params.candidates = params.token_budget;
    EXPECT_EQ(Run(Ask(prompt, params, 1)), dense) << PolicyName(params.policy);
  }
  // Nothing is reserved for tokens that cannot come.
  for (const AttentionPolicy policy : {AttentionPolicy::kSketch, AttentionPolicy::kH2o}) {
    AttentionParams params = Params(policy);
    params.token_budget = 1 << 24;
    EXPECT_EQ(Run(Ask(prompt, params, 1)), dense) << PolicyName(policy);
  }
  ExpectIdle();
}

// Sampled with the log-probability of each token, then scored by themselves: the logits of a
// completion that was forked from others are those of one that was not.
TEST_P(EnginePoliciesTest, ForksDecodeAsIfTheyHadBeenAlone) {
  // Ends inside a block and inside a state block.
  const int prompt = GetParam().prompt_tokens / 16 * 16 - 11;
  GenerationRequest request = Ask(prompt, Params(AttentionPolicy::kSketch), 3);
  request.sampling.n = 3;
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  request.logprobs.top = 0;
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone(absl::Minutes(5)));
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_NE(sink->token_ids(0), sink->token_ids(1));
  for (int index = 0; index < 3; ++index) {
    std::vector<float> said;
    for (const OutputChunk& chunk : sink->chunks()) {
      if (chunk.index != index) continue;
      for (const PositionLogprobs& position : chunk.logprobs)
        said.push_back(position.chosen.logprob);
    }
    GenerationRequest score = Ask(prompt, request.attention, 3);
    score.max_tokens = 0;
    score.score_token_ids = sink->token_ids(index);
    const auto scored = Submit(score);
    ASSERT_TRUE(scored->WaitDone(absl::Minutes(5)));
    ASSERT_EQ(said.size(), score.score_token_ids.size());
    const auto logits = scored->logits();
    for (size_t i = 0; i < said.size(); ++i) {
      EXPECT_NEAR(LogSoftmax(logits[i].second)[score.score_token_ids[i]], said[i], 1e-4)
          << "completion " << index << ", token " << i;
    }
  }
  ExpectIdle();
}

// A budget of b from a context of c: min(b, c) tokens per layer and KV head, each of them looked up
// when some are left out.
TEST_P(EnginePoliciesTest, FinishedAndMetricsCountWhatWasAttended) {
  const int budget = GetParam().token_budget;
  const int prompt = budget - 5;  // the first steps are dense
  const auto sink = Submit(Ask(prompt, Params(AttentionPolicy::kExact), 1));
  ASSERT_TRUE(sink->WaitDone(absl::Minutes(5)));
  const ModelConfig& config = model_->runner().config();
  const int64_t lists = int64_t{config.num_layers} * config.num_kv_heads;
  const int steps = GetParam().new_tokens - 1;
  int64_t attended = 0, lookups = 0, short_steps = 0;
  double ratios = 0;
  for (int step = 0; step < steps; ++step) {
    const int context = prompt + 1 + step;
    attended += std::min(budget, context) * lists;
    if (context > budget) lookups += budget * lists;
    short_steps += context <= budget;
    ratios += static_cast<double>(std::min(budget, context)) / context;
  }
  ASSERT_GT(lookups, 0);
  ASSERT_GT(short_steps, 0);
  const std::optional<AttentionStats> stats = sink->finished()[0].attention;
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->attended_lists, steps * lists);
  EXPECT_EQ(stats->attended_tokens, attended);
  EXPECT_EQ(stats->offload.lookups, lookups);
  EXPECT_EQ(stats->offload.hits, lookups) << "the device is the host";
  EXPECT_EQ(stats->offload.host_to_device_bytes, 0);
  EXPECT_EQ(metrics_.hot_buffer_lookups_total.Value(), lookups);
  EXPECT_EQ(metrics_.hot_buffer_hits_total.Value(), lookups);
  EXPECT_EQ(metrics_.dense_fallback_total.short_context.Value(), short_steps * config.num_layers);
  const auto ratio = metrics_.attended_ratio.Collect().histogram;
  EXPECT_EQ(ratio.sample_count, steps);
  EXPECT_NEAR(ratio.sample_sum, ratios, 1e-6);
  const auto selected = metrics_.selected_tokens.Collect().histogram;
  EXPECT_NEAR(selected.sample_sum, static_cast<double>(attended) / lists, 1e-6);
  EXPECT_EQ(metrics_.kv_device_used_bytes.Value(), 0);
  ExpectIdle();
}

// One dense prefill is held; each policy goes on from it (some have watched it, others are shown
// its rows) and predicts, bit for bit, what it predicts after a prefill of its own.
TEST_P(EnginePoliciesTest, AForkOfAHeldPromptScoresAsAPrefillOfItsOwn) {
  const int prompt = GetParam().prompt_tokens;  // ends inside a block
  const std::vector<AttentionParams> all = EveryAttention();
  GenerationRequest hold = Ask(prompt, {}, 1);
  hold.max_tokens = 0;
  hold.hold.name = "prompt";
  for (const AttentionParams& params : all) {
    // One policy that could do without, too.
    if (params.sparse() && (model_->runner().learns_from_prefill(params) ||
                            params.policy == AttentionPolicy::kXkv || params.candidates > 0)) {
      hold.hold.attentions.push_back(params);
    }
  }
  ASSERT_GE(hold.hold.attentions.size(), 4);
  Run(hold);
  const auto score = [&](const AttentionParams& params, bool continues) {
    GenerationRequest request = Ask(prompt, params, 1);
    request.max_tokens = 0;
    request.score_token_ids = Ask(20, {}, 2).prompt_token_ids;
    if (continues) request.continues = "prompt";
    return Submit(request);
  };
  std::vector<std::shared_ptr<RecordingSink>> own, forked;
  for (const AttentionParams& params : all) own.push_back(score(params, false));
  for (const AttentionParams& params : all) forked.push_back(score(params, true));
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(own[i]->WaitDone(absl::Minutes(5)));
    ASSERT_TRUE(forked[i]->WaitDone(absl::Minutes(5)));
    ASSERT_TRUE(forked[i]->status().ok()) << forked[i]->status();
    const auto expected = own[i]->logits(), got = forked[i]->logits();
    ASSERT_EQ(expected.size(), 21);
    ASSERT_EQ(got.size(), 20);
    for (size_t p = 0; p < got.size(); ++p) {
      EXPECT_EQ(got[p], expected[p + 1]) << PolicyName(all[i].policy) << ", position " << p;
    }
  }

  // The same from rows that were saved.
  auto rows = std::make_shared<PromptRows>();
  rows->num_tokens = prompt;
  const KvStore& store = model_->kv_store();
  const BlockTable held = engine_->HeldBlocks("prompt").value();
  const size_t block_bytes = store.layout().block_bytes();
  rows->blocks.resize(held.blocks.size() * block_bytes);
  for (size_t b = 0; b < held.blocks.size(); ++b) {
    store.ReadBlock(held.blocks[b],
                    absl::MakeSpan(rows->blocks).subspan(b * block_bytes, block_bytes));
  }
  EXPECT_TRUE(engine_->DropPrompt("prompt"));
  GenerationRequest request = Ask(prompt, Params(AttentionPolicy::kSketch), 1);
  request.max_tokens = 0;
  request.score_token_ids = Ask(20, {}, 2).prompt_token_ids;
  const auto expected = Submit(request);
  request.request_id += "saved";
  request.prompt_rows = rows;
  const auto saved = Submit(request);
  ASSERT_TRUE(expected->WaitDone(absl::Minutes(5)));
  ASSERT_TRUE(saved->WaitDone(absl::Minutes(5)));
  ASSERT_EQ(saved->logits().size(), 20);
  for (int p = 0; p < 20; ++p) EXPECT_EQ(saved->logits()[p], expected->logits()[p + 1]);
  ExpectIdle();
}

TEST_P(EnginePoliciesTest, ACancelMidWayLeavesNothingBehind) {
  for (const AttentionParams& params : EveryAttention()) {
    GenerationRequest request = Ask(GetParam().prompt_tokens, params, 1);
    request.max_tokens = 1000;
    request.sampling.n = 2;
    request.sampling.temperature = 1;
    const auto sink = std::make_shared<RecordingSink>();
    sink->on_event = [&](const std::string& event) {
      if (event == "chunk") engine_->Abort(request.request_id, absl::OkStatus());
    };
    ASSERT_TRUE(engine_->Submit(request, sink).ok());
    ASSERT_TRUE(sink->WaitDone(absl::Minutes(5)));
    EXPECT_EQ(sink->finished().size(), 2);
    ExpectIdle();
  }
}

TEST_P(EnginePoliciesTest, WhatIsRefusedNamesTheField) {
  AttentionParams params = Params(AttentionPolicy::kSketch);
  params.token_budget = params.sink_tokens + params.local_window + params.prediction_interval - 1;
  const absl::Status status =
      engine_->Submit(Ask(30, params, 1), std::make_shared<RecordingSink>());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("attention.token_budget is"));
}

INSTANTIATE_TEST_SUITE_P(
    Models, EnginePoliciesTest,
    ::testing::Values(ModelCase{"Tiny",
                                std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-yarn", "",
                                150, 48, 20},
                      ModelCase{"SmolLm2", CachedModelPath("SmolLM2-135M-Instruct.Q4_1.gguf"),
                                "run scripts/setup", 150, 72, 8}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tokenbutler
