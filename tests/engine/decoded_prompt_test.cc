// Prompts whose last tokens go through the decode path, as a question to a sparse context does.

#include <atomic>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/engine/engine_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

class DecodedPromptTest : public EngineTest {
 protected:
  static GenerationRequest AskDecoded(int prompt_tokens, int decoded, int max_tokens) {
    GenerationRequest request = Ask("r", prompt_tokens, max_tokens);
    request.decoded_prompt_tokens = decoded;
    return request;
  }

  std::shared_ptr<RecordingSink> Run(const GenerationRequest& request) {
    auto sink = Submit(request);
    EXPECT_TRUE(sink->WaitDone());
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink;
  }

  std::string Refusal(GenerationRequest request) {
    const absl::Status status =
        engine->Submit(std::move(request), std::make_shared<RecordingSink>());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
};

TEST_F(DecodedPromptTest, TheTokensAreThoseOfAPrefilledPromptAndStepsAreSingle) {
  Start();
  for (const int decoded : {1, 2, 7, 16}) {
    for (const int prefilled : {1, 3, 8, 17}) {
      const int before = runner.num_steps();
      const GenerationRequest request = AskDecoded(prefilled + decoded, decoded, 5);
      const auto sink = Run(request);
      EXPECT_EQ(sink->token_ids(), Expected(request, 0)) << prefilled << " + " << decoded;
      EXPECT_EQ(sink->finished()[0].prompt_tokens, prefilled + decoded);
      EXPECT_EQ(sink->finished()[0].completion_tokens, 5);
      // Chunks, the prompt's end token by token, all sampled tokens but the last.
      EXPECT_EQ(runner.num_steps() - before, (prefilled + kChunk - 1) / kChunk + decoded + 4);
    }
  }
  ExpectIdle();
}

TEST_F(DecodedPromptTest, OnlyTheLastTokensLogitsAreComputed) {
  std::atomic<int> wanted{0}, steps{0};
  runner.before_run = [&](const StepPlan& plan) {
    for (const StepItem& item : plan.decode) wanted += item.logits != LogitsWanted::kNone;
    for (const StepItem& item : plan.prefill_chunks) wanted += item.logits != LogitsWanted::kNone;
    steps += static_cast<int>(plan.decode.size());
    return absl::OkStatus();
  };
  Start();
  Run(AskDecoded(20, 6, 1));
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(wanted, 1);
  ExpectIdle();
}

TEST_F(DecodedPromptTest, CompletionsShareWhatIsPrefilledOnly) {
  Start();
  for (const int prefilled : {3, 8, 18}) {
    GenerationRequest request = AskDecoded(prefilled + 6, 6, 9);
    request.sampling.n = 3;
    request.sampling.temperature = 1;
    request.sampling.seed = 3;
    const auto sink = Run(request);
    for (int index = 0; index < 3; ++index) {
      EXPECT_EQ(sink->token_ids(index), Expected(request, 3, index)) << prefilled << ' ' << index;
    }
  }
  ExpectIdle();
}

TEST_F(DecodedPromptTest, BehindAHeldPromptNothingNeedsAChunk) {
  Start();
  GenerationRequest hold = Ask("hold", 13, 0);
  hold.hold.name = "p";
  Run(hold);
  const int before = runner.num_steps();
  GenerationRequest request = AskDecoded(18, 5, 4);
  request.continues = "p";
  EXPECT_EQ(Run(request)->token_ids(), Expected(request, 0));
  EXPECT_EQ(runner.num_steps() - before, 5 + 3);
  request.decoded_prompt_tokens = 3;  // two are prefilled behind the held ones
  EXPECT_EQ(Run(request)->token_ids(), Expected(request, 0));
  request.decoded_prompt_tokens = 6;
  EXPECT_THAT(Refusal(request), HasSubstr("decoded_prompt_tokens is 6, must be at most 5"));
  EXPECT_TRUE(engine->DropPrompt("p"));
  Run(Ask("after", 1, 1));
  ExpectIdle();
}

// A failed step runs each item again by itself.
TEST_F(DecodedPromptTest, AStepThatFailsIsRunAgain) {
  std::atomic<int> failures{0};
  runner.before_run = [&](const StepPlan& plan) {
    const bool fails = plan.decode.size() > 1 && failures < 3;
    if (fails) ++failures;
    return fails ? absl::InternalError("planted") : absl::OkStatus();
  };
  runner.Hold();  // neither is over before the other has come
  Start();
  GenerationRequest first = AskDecoded(12, 4, 5), second = AskDecoded(9, 8, 5);
  second.request_id = "second";
  const auto a = Submit(first), b = Submit(second);
  runner.Resume();
  ASSERT_TRUE(a->WaitDone() && b->WaitDone());
  EXPECT_EQ(a->token_ids(), Expected(first, 0));
  EXPECT_EQ(b->token_ids(), Expected(second, 0));
  EXPECT_EQ(failures, 3);
  ExpectIdle();
}

TEST_F(DecodedPromptTest, AnAbortInsideThePromptFinishesWithoutTokens) {
  Start();
  runner.Hold();
  const auto sink = Submit(AskDecoded(20, 12, 5));
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_TRUE(engine->Abort("r", absl::OkStatus()));
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(sink->finished()[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(sink->finished()[0].completion_tokens, 0);
  ExpectIdle();
}

TEST_F(DecodedPromptTest, WhatItExcludesIsRefused) {
  Start();
  EXPECT_THAT(Refusal(AskDecoded(5, 5, 1)),
              HasSubstr("decoded_prompt_tokens is 5, must be in [0, 5)"));
  EXPECT_THAT(Refusal(AskDecoded(5, -1, 1)), HasSubstr("decoded_prompt_tokens is -1"));
  EXPECT_THAT(Refusal(AskDecoded(5, 2, 0)), HasSubstr("must be 0 unless tokens are sampled"));
  GenerationRequest request = AskDecoded(5, 2, 1);
  request.logprobs.include_prompt = true;
  EXPECT_THAT(Refusal(request), HasSubstr("log-probabilities of the prompt"));
}

TEST_F(DecodedPromptTest, WatchedTokensAreOfThePrompt) {
  Start();
  GenerationRequest request = Ask("r", 5, 1);
  request.probe.watched = {1, 5};
  EXPECT_THAT(Refusal(request), HasSubstr("probe.watched has 5"));
  request.probe.watched = {3, 3};
  EXPECT_THAT(Refusal(request), HasSubstr("probe.watched has 3"));
  request.probe.watched = {0, 4};
  EXPECT_EQ(Run(request)->token_ids().size(), 1);
}

}  // namespace
}  // namespace tokenbutler
