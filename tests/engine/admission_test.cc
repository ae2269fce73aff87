#include "engine/admission.h"

#include <limits>
#include <string>

#include "base/status_details.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AdmissionLimits TestLimits() {
  AdmissionLimits limits;
  limits.config.max_model_len = 100;
  limits.config.max_num_seqs = 8;
  limits.layout.num_layers = 2;
  limits.layout.num_kv_heads = 1;
  limits.layout.head_dim = 8;
  limits.layout.block_size = 16;
  limits.num_blocks = 20;
  limits.vocab_size = 50;
  return limits;
}

GenerationRequest Prompt(int tokens, int max_tokens) {
  GenerationRequest request;
  request.prompt_token_ids.assign(static_cast<size_t>(tokens), 1);
  request.max_tokens = max_tokens;
  return request;
}

TEST(AdmissionTest, FootprintIsTheMostARequestCanUse) {
  const auto footprint = CheckAdmissible(Prompt(16, 17), TestLimits());
  ASSERT_TRUE(footprint.ok()) << footprint.status();
  EXPECT_EQ(footprint->max_new_tokens, 17);
  EXPECT_FALSE(footprint->context_bound);
  EXPECT_EQ(footprint->blocks_per_sequence, 2) << "the last sampled token needs no row";
  EXPECT_EQ(footprint->total_blocks, 2);
}

TEST(AdmissionTest, TheContextBoundsTheCompletion) {
  const auto footprint = CheckAdmissible(Prompt(90, 1000), TestLimits());
  ASSERT_TRUE(footprint.ok()) << footprint.status();
  EXPECT_EQ(footprint->max_new_tokens, 10);
  EXPECT_TRUE(footprint->context_bound);
  const auto exact = CheckAdmissible(Prompt(90, 10), TestLimits());
  EXPECT_FALSE(exact->context_bound);
  const auto huge = CheckAdmissible(Prompt(1, std::numeric_limits<int>::max()), TestLimits());
  EXPECT_EQ(huge->max_new_tokens, 99);
}

TEST(AdmissionTest, CompletionsShareTheFullBlocksOfThePrompt) {
  GenerationRequest request = Prompt(40, 20);
  request.sampling.n = 4;
  const auto footprint = CheckAdmissible(request, TestLimits());
  ASSERT_TRUE(footprint.ok()) << footprint.status();
  EXPECT_EQ(footprint->blocks_per_sequence, 4);  // 59 rows
  EXPECT_EQ(footprint->shared_blocks, 2);
  EXPECT_EQ(footprint->total_blocks, 4 + 3 * 2);
}

TEST(AdmissionTest, WhatCanNeverFitNamesNeededAndTotalBytes) {
  GenerationRequest request = Prompt(1, 99);
  request.sampling.n = 3;
  const auto status = CheckAdmissible(request, TestLimits()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelay(status), std::nullopt);
  const size_t block_bytes = TestLimits().layout.block_bytes();
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(std::to_string(21 * block_bytes)),
                                                   HasSubstr(std::to_string(20 * block_bytes))));
}

TEST(AdmissionTest, ADefaultOfMaxTokensIsLoweredToWhatTheHostTierHolds) {
  AdmissionLimits limits = TestLimits();
  limits.num_blocks = 3;  // 48 tokens
  GenerationRequest request = Prompt(20, 100);
  EXPECT_FALSE(CheckAdmissible(request, limits).ok()) << "an explicit one is refused";
  request.fit_max_tokens = true;
  auto footprint = CheckAdmissible(request, limits);
  ASSERT_TRUE(footprint.ok()) << footprint.status();
  EXPECT_EQ(footprint->max_new_tokens, 29) << "28 rows are left, and the last token needs none";
  EXPECT_TRUE(footprint->context_bound);
  EXPECT_EQ(footprint->total_blocks, 3);

  limits.num_blocks = 20;
  footprint = CheckAdmissible(request, limits);
  EXPECT_EQ(footprint->max_new_tokens, 80) << "the context is less";
  request.max_tokens = 7;
  EXPECT_EQ(CheckAdmissible(request, limits)->max_new_tokens, 7);
  EXPECT_FALSE(CheckAdmissible(request, limits)->context_bound);
}

TEST(AdmissionTest, ALoweredDefaultCountsEveryCompletion) {
  for (int n = 1; n <= 8; ++n) {
    for (int prompt = 1; prompt < 100; ++prompt) {
      GenerationRequest request = Prompt(prompt, 100);
      request.sampling.n = n;
      request.fit_max_tokens = true;
      const auto lowered = CheckAdmissible(request, TestLimits());
      request.fit_max_tokens = false;
      request.max_tokens = 1;
      ASSERT_EQ(lowered.ok(), CheckAdmissible(request, TestLimits()).ok()) << n << " x " << prompt;
      if (!lowered.ok()) continue;
      request.max_tokens = lowered->max_new_tokens;
      EXPECT_TRUE(CheckAdmissible(request, TestLimits()).ok()) << n << " x " << prompt;
      request.max_tokens += 1;
      if (prompt + request.max_tokens > 100) continue;
      EXPECT_FALSE(CheckAdmissible(request, TestLimits()).ok()) << "more would have fitted";
    }
  }
}

// A runner whose policies keep two records per block, in units of a quarter of a block.
class StateRunner : public ModelRunner {
 public:
  int vocab_size() const override { return 50; }
  absl::Status Run(const StepPlan&) override { return absl::OkStatus(); }
  absl::Span<const float> decode_logits(int) const override { return {}; }
  absl::Span<const float> prefill_logits(int) const override { return {}; }
  void CopyBlock(BlockId, BlockId) override {}
  void WriteBlock(absl::Span<const std::byte>, BlockId) override {}
  absl::Status CheckAttention(const AttentionParams& params) const override {
    return params.Validate();
  }
  StateLayout state_layout(const AttentionParams& params) const override {
    const size_t block_bytes = TestLimits().layout.block_bytes();
    if (params.policy != AttentionPolicy::kSketch) return {};
    return {.record_bytes = block_bytes / 3,
            .num_layers = 1,
            .num_kv_heads = 1,
            .lane_bytes = block_bytes,
            .lane_stride = block_bytes};
  }
};

// With a budget that most requests exceed.
AttentionParams Sketch() {
  AttentionParams params;
  params.policy = AttentionPolicy::kSketch;
  params.sink_tokens = 0;
  params.local_window = 1;
  params.token_budget = 2;
  return params;
}

TEST(AdmissionTest, StateBlocksAreChargedAndSharedWhenAllTheirBlocksAre) {
  StateRunner runner;
  AdmissionLimits limits = TestLimits();
  limits.num_blocks = 100;
  limits.runner = &runner;
  GenerationRequest request = Prompt(70, 20);  // 4 full blocks of prompt; 89 rows are 6 blocks
  request.sampling.n = 4;
  request.attention = Sketch();
  auto footprint = CheckAdmissible(request, limits);
  ASSERT_TRUE(footprint.ok()) << footprint.status();
  EXPECT_EQ(footprint->blocks_per_sequence, 6);
  EXPECT_EQ(footprint->shared_blocks, 4);
  EXPECT_EQ(footprint->state_blocks_per_sequence, 2);
  EXPECT_EQ(footprint->shared_state_blocks, 1) << "the second holds a fork's own records";
  EXPECT_EQ(footprint->total_blocks, 8 + 3 * (2 + 1));

  request.attention.policy = AttentionPolicy::kStreamingLlm;  // keeps nothing
  footprint = CheckAdmissible(request, limits);
  EXPECT_EQ(footprint->state_blocks_per_sequence, 0);
  EXPECT_EQ(footprint->total_blocks, 6 + 3 * 2);

  // The policy never runs when the budget holds every token.
  request.attention = Sketch();
  request.attention.token_budget = 89;
  EXPECT_EQ(CheckAdmissible(request, limits)->total_blocks, 6 + 3 * 2);
  EXPECT_FALSE(CheckAdmissible(request, limits)->selects);
  request.attention.token_budget = 88;
  EXPECT_EQ(CheckAdmissible(request, limits)->total_blocks, 8 + 3 * (2 + 1));
}

TEST(AdmissionTest, WhatCannotFitForItsStateSaysSo) {
  StateRunner runner;
  AdmissionLimits limits = TestLimits();
  limits.num_blocks = 7;
  limits.runner = &runner;
  GenerationRequest request = Prompt(70, 20);  // 6 blocks and 2 of state
  EXPECT_TRUE(CheckAdmissible(request, limits).ok());
  request.attention = Sketch();
  const absl::Status status = CheckAdmissible(request, limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const size_t block_bytes = limits.layout.block_bytes();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(std::to_string(8 * block_bytes)),
                    HasSubstr(fmt::format("2 of them ({} bytes) for the state of attention.policy "
                                          "\"sketch\"",
                                          2 * block_bytes))));
}

TEST(AdmissionTest, ALoweredDefaultCountsStateBlocks) {
  StateRunner runner;
  AdmissionLimits limits = TestLimits();
  limits.runner = &runner;
  for (int n = 1; n <= 8; ++n) {
    for (int prompt = 1; prompt < 100; ++prompt) {
      GenerationRequest request = Prompt(prompt, 100);
      request.attention = Sketch();
      request.sampling.n = n;
      request.fit_max_tokens = true;
      const auto lowered = CheckAdmissible(request, limits);
      request.fit_max_tokens = false;
      request.max_tokens = 1;
      ASSERT_EQ(lowered.ok(), CheckAdmissible(request, limits).ok()) << n << " x " << prompt;
      if (!lowered.ok()) continue;
      request.max_tokens = lowered->max_new_tokens;
      EXPECT_TRUE(CheckAdmissible(request, limits).ok()) << n << " x " << prompt;
      request.max_tokens += 1;
      if (prompt + request.max_tokens > 100) continue;
      EXPECT_FALSE(CheckAdmissible(request, limits).ok()) << "more would have fitted";
    }
  }
}

struct BadRequest {
  std::string name;
  void (*edit)(GenerationRequest*);
  std::string message;  // a part of it
};

class AdmissionRefusalTest : public testing::TestWithParam<BadRequest> {};

TEST_P(AdmissionRefusalTest, IsInvalidNamingTheFieldTheValueAndTheBound) {
  GenerationRequest request = Prompt(10, 10);
  GetParam().edit(&request);
  const auto status = CheckAdmissible(request, TestLimits()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Requests, AdmissionRefusalTest,
    testing::Values(
        BadRequest{"EmptyPrompt", [](GenerationRequest* r) { r->prompt_token_ids.clear(); },
                   "the prompt has no tokens"},
        BadRequest{"LongPrompt", [](GenerationRequest* r) { r->prompt_token_ids.assign(101, 1); },
                   "the prompt has 101 tokens, must have at most 100"},
        BadRequest{"TokenOutsideTheVocabulary",
                   [](GenerationRequest* r) { r->prompt_token_ids[3] = 50; },
                   "prompt.token_ids[3] is 50, must be in [0, 50)"},
        BadRequest{"NegativeToken", [](GenerationRequest* r) { r->prompt_token_ids[0] = -1; },
                   "prompt.token_ids[0] is -1"},
        BadRequest{"NegativeMaxTokens", [](GenerationRequest* r) { r->max_tokens = -1; },
                   "max_tokens is -1"},
        BadRequest{"NoCompletions", [](GenerationRequest* r) { r->sampling.n = 0; },
                   "sampling.n is 0, must be in [1, 8]"},
        BadRequest{"TooManyCompletions", [](GenerationRequest* r) { r->sampling.n = 9; },
                   "sampling.n is 9, must be in [1, 8]"},
        BadRequest{"BadSampling", [](GenerationRequest* r) { r->sampling.top_p = 2.0f; }, "top_p"},
        BadRequest{"ScoringWhileSampling", [](GenerationRequest* r) { r->score_token_ids = {1}; },
                   "tokens to score are given with max_tokens 10"},
        BadRequest{"ScoredTokenOutsideTheVocabulary",
                   [](GenerationRequest* r) {
                     r->max_tokens = 0;
                     r->score_token_ids = {1, 99};
                   },
                   "score_token_ids[1] is 99"},
        BadRequest{"ScoringPastTheContext",
                   [](GenerationRequest* r) {
                     r->max_tokens = 0;
                     r->score_token_ids.assign(91, 1);
                   },
                   "10 + 91 tokens, must be at most 100"}),
    [](const auto& info) { return info.param.name; });

TEST(EngineConfigTest, DefaultsAreValidAndEveryBoundIsNamed) {
  EXPECT_TRUE(EngineConfig{}.Validate().ok());
  const auto message = [](auto edit) {
    EngineConfig config;
    edit(&config);
    const absl::Status status = config.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message([](EngineConfig* c) { c->max_model_len = -1; }),
            "max_model_len is -1, must be at least 0");
  EXPECT_EQ(message([](EngineConfig* c) { c->max_num_seqs = 0; }),
            "max_num_seqs is 0, must be at least 1");
  EXPECT_EQ(message([](EngineConfig* c) { c->prefill_chunk_tokens = 0; }),
            "prefill_chunk_tokens is 0, must be at least 1");
  EXPECT_EQ(message([](EngineConfig* c) { c->max_waiting_requests = 0; }),
            "max_waiting_requests is 0, must be at least 1");
  EXPECT_EQ(message([](EngineConfig* c) { c->max_waiting_tokens = 0; }),
            "max_waiting_tokens is 0, must be at least 1");
  EXPECT_EQ(message([](EngineConfig* c) { c->max_queue_time = absl::ZeroDuration(); }),
            "max_queue_time is 0, must be positive");
  EXPECT_EQ(message([](EngineConfig* c) { c->priority_step = -absl::Seconds(1); }),
            "priority_step is -1s, must not be negative");
  EXPECT_EQ(message([](EngineConfig* c) { c->max_overtakes = -1; }),
            "max_overtakes is -1, must be at least 0");
}

}  // namespace
}  // namespace tokenbutler
