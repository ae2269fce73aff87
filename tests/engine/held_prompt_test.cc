// Prompts that stay in the KV cache, and requests that begin with them.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/engine/engine_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HeldPromptTest : public EngineTest {
 protected:
  static AttentionParams Sketch(int token_budget = 2) {
    AttentionParams params;
    params.policy = AttentionPolicy::kSketch;
    params.sink_tokens = 0;
    params.local_window = 1;
    params.token_budget = token_budget;
    return params;
  }

  static GenerationRequest AskHold(std::string name, int prompt_tokens) {
    GenerationRequest request = Ask("hold " + name, prompt_tokens, 0);
    request.hold.name = std::move(name);
    return request;
  }

  void Hold(GenerationRequest request) {
    const auto sink = Submit(std::move(request));
    ASSERT_TRUE(sink->WaitDone());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
  }

  static GenerationRequest Continue(GenerationRequest request, std::string name) {
    request.continues = std::move(name);
    return request;
  }

  absl::Status Refusal(GenerationRequest request) {
    return engine->Submit(std::move(request), std::make_shared<RecordingSink>());
  }

  std::shared_ptr<RecordingSink> Run(const GenerationRequest& request) {
    auto sink = Submit(request);
    EXPECT_TRUE(sink->WaitDone());
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    return sink;
  }

  void DropAndExpectIdle(const std::string& name) {
    EXPECT_TRUE(engine->DropPrompt(name));
    // The next request comes after the drop.
    Run(Ask("after", 1, 1));
    ExpectIdle();
  }
};

// Blocks hold 4 tokens, state blocks the records of 4 blocks.
TEST_F(HeldPromptTest, AContinuationHasTheTokensOfTheWholePromptAndRunsTheRestOnly) {
  Start();
  for (const int held : {1, 3, 4, 5, 15, 16, 17, 33, 64}) {
    Hold(AskHold("p", held));
    EXPECT_EQ(pool.num_used(), (held + 3) / 4);
    for (const int rest : {1, 2, 4, 13}) {
      const int before = runner.num_steps();
      GenerationRequest request = Ask("c", held + rest, 10);
      const auto sink = Run(Continue(request, "p"));
      EXPECT_EQ(sink->token_ids(), Expected(request, 0)) << held << " + " << rest;
      EXPECT_EQ(sink->finished()[0].cached_tokens, held);
      EXPECT_EQ(sink->finished()[0].prompt_tokens, held + rest);
      EXPECT_EQ(runner.num_steps() - before, (rest + kChunk - 1) / kChunk + 9);
      request.attention = Sketch();
      EXPECT_EQ(Run(Continue(request, "p"))->token_ids(), Expected(request, 0)) << "adopted rows";
    }
    DropAndExpectIdle("p");
  }
}

TEST_F(HeldPromptTest, ManyContinueOnePromptTogether) {
  Start();
  Hold(AskHold("p", 37));
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request = Ask(std::to_string(i), 38 + i, 20);
    request.sampling.n = 1 + i % 3;
    request.sampling.temperature = 1;
    request.sampling.seed = 3;
    if (i % 2 == 1) request.attention = Sketch();
    requests.push_back(Continue(request, "p"));
  }
  for (const GenerationRequest& request : requests) sinks.push_back(Submit(request));
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(sinks[i]->WaitDone());
    for (int index = 0; index < requests[i].sampling.n; ++index) {
      EXPECT_EQ(sinks[i]->token_ids(index), Expected(requests[i], 3, index)) << i << ' ' << index;
    }
  }
  DropAndExpectIdle("p");
}

TEST_F(HeldPromptTest, ScoringBeginsBehindTheHeldTokens) {
  Start();
  Hold(AskHold("p", 18));
  GenerationRequest request = Continue(Ask("score", 18, 0), "p");
  request.score_token_ids = {7, 8, 9};
  std::vector<int32_t> tokens = request.prompt_token_ids;
  const auto logits = Run(request)->logits();
  ASSERT_EQ(logits.size(), 3) << "nothing runs the prompt's last token";
  for (int i = 0; i < 3; ++i) {
    tokens.push_back(request.score_token_ids[i]);
    EXPECT_EQ(logits[i].first, i + 1);
    EXPECT_EQ(logits[i].second, runner.LogitsAfter(tokens));
  }
  request.prompt_token_ids.push_back(3);
  const auto longer = Run(request)->logits();
  ASSERT_EQ(longer.size(), 4);
  EXPECT_EQ(longer[0].first, 0);
  EXPECT_EQ(longer[0].second, runner.LogitsAfter(request.prompt_token_ids));
  DropAndExpectIdle("p");
}

TEST_F(HeldPromptTest, WhatAPolicyHasLearnedIsSharedWithItsBlocks) {
  runner.learning = {AttentionPolicy::kSketch};
  std::atomic<int> used{0};  // as of the last step
  runner.before_run = [&](const StepPlan&) {
    used = pool.num_used();
    return absl::OkStatus();
  };
  Start();
  for (const int held : {3, 16, 18, 35, 64}) {
    GenerationRequest hold = AskHold("p", held);
    hold.hold.attentions = {Sketch(), Sketch(4)};
    Hold(hold);
    const int blocks = (held + 3) / 4, states = (blocks + 3) / 4;
    EXPECT_EQ(pool.num_used(), blocks + 2 * states);
    EXPECT_EQ(runner.num_states(), 2);
    GenerationRequest request = Ask("c", held, 0);
    request.score_token_ids.assign(20, 5);
    request.attention = Sketch(4);
    const auto logits = Run(Continue(request, "p"))->logits();
    ASSERT_EQ(logits.size(), 20);
    std::vector<int32_t> tokens = request.prompt_token_ids;
    for (int i = 0; i < 20; ++i) {
      tokens.push_back(5);
      EXPECT_EQ(logits[i].second, runner.LogitsAfter(tokens)) << held << ", token " << i;
    }
    const int all = (held + 20 + 3) / 4;
    EXPECT_EQ(used, blocks + 2 * states + all - held / 4 + (all + 3) / 4 - held / 16);
    // With other parameters nothing has been learned.
    request.attention = Sketch(3);
    EXPECT_THAT(std::string(Refusal(Continue(request, "p")).message()),
                HasSubstr("learns from the prompt's queries"));
    DropAndExpectIdle("p");
  }
}

TEST_F(HeldPromptTest, NamesAreUniqueUntilTheyAreDropped) {
  Start();
  EXPECT_EQ(Refusal(Continue(Ask("a", 9, 1), "p")).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(engine->DropPrompt("p"));
  EXPECT_EQ(engine->HeldBlocks("p").status().code(), absl::StatusCode::kNotFound);
  Hold(AskHold("p", 9));
  EXPECT_EQ(engine->HeldBlocks("p")->num_tokens, 9);
  GenerationRequest again = AskHold("p", 5);
  again.request_id = "again";
  EXPECT_EQ(Refusal(again).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(engine->DropPrompt("p"));
  EXPECT_FALSE(engine->DropPrompt("p"));
  Hold(again);
  EXPECT_EQ(engine->HeldBlocks("p")->num_tokens, 5);
  DropAndExpectIdle("p");
}

TEST_F(HeldPromptTest, AHoldThatIsAbortedGivesItsNameAndBlocksBack) {
  Start();
  for (const absl::Status& reason : {absl::OkStatus(), absl::CancelledError("enough")}) {
    GenerationRequest hold = AskHold("p", 100);
    hold.hold.attentions = {Sketch()};
    hold.output.return_progress = true;
    const auto sink = std::make_shared<RecordingSink>();
    sink->on_event = [&](const std::string& event) {
      if (event == "progress") engine->Abort("hold p", reason);
    };
    Submit(hold, sink);
    ASSERT_TRUE(sink->WaitDone());
    ExpectIdle();
    EXPECT_FALSE(engine->DropPrompt("p"));
  }
}

TEST_F(HeldPromptTest, ADroppedPromptStaysUntilItsContinuationsAreOver) {
  Start();
  Hold(AskHold("p", 40));
  runner.Hold();
  GenerationRequest request = Ask("c", 41, 10);
  const auto sink = Submit(Continue(request, "p"));
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_TRUE(engine->DropPrompt("p"));
  runner.Resume();
  const auto other = Submit(Ask("other", 60, 10, 1));  // would take the blocks if they were free
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(sink->token_ids(), Expected(request, 0));
  ASSERT_TRUE(other->WaitDone());
  ExpectIdle();
}

TEST_F(HeldPromptTest, TheEnginesEndReleasesWhatIsHeld) {
  Start();
  GenerationRequest hold = AskHold("p", 40);
  hold.hold.attentions = {Sketch()};
  Hold(hold);
  engine.reset();
  EXPECT_EQ(pool.num_free(), kNumBlocks);
  EXPECT_EQ(runner.num_states(), 0);
}

TEST_F(HeldPromptTest, WhatCannotBeContinuedOrHeldIsRefused) {
  Start();
  Hold(AskHold("p", 9));
  const auto message = [this](GenerationRequest request) {
    const absl::Status status = Refusal(std::move(request));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Continue(Ask("a", 8, 1), "p")), HasSubstr("must begin with the 9"));
  EXPECT_THAT(message(Continue(Ask("a", 10, 1, /*salt=*/1), "p")), HasSubstr("must begin with"));
  EXPECT_THAT(message(Continue(Ask("a", 9, 1), "p")), HasSubstr("must have more than the 9"));
  GenerationRequest request = Continue(Ask("a", 10, 1), "p");
  request.logprobs.include_prompt = true;
  EXPECT_THAT(message(request), HasSubstr("log-probabilities of the prompt"));
  request = AskHold("q", 9);
  request.max_tokens = 1;
  EXPECT_THAT(message(request), HasSubstr("to be held as \"q\", with max_tokens 1"));
  request = Ask("rows", 9, 1);
  request.prompt_rows = std::make_shared<PromptRows>(PromptRows{.num_tokens = 5, .blocks = {}});
  EXPECT_THAT(message(request), HasSubstr("prompt_rows has 0 bytes for 5 tokens"));
  DropAndExpectIdle("p");
}

// 256 blocks of 16 bytes; a policy says what it keeps elsewhere.
TEST_F(HeldPromptTest, MemoryOutsideOfBlocksIsReserved) {
  const int64_t block_bytes = static_cast<int64_t>(TestLayout().block_bytes());
  runner.memory = {.own = 10 * block_bytes, .shared = 20 * block_bytes - 1};
  Start();
  runner.Hold();
  GenerationRequest request = Ask("a", 17, 4);
  request.attention = Sketch();
  request.sampling.n = 3;
  const auto sink = Submit(request);
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_EQ(metrics.kv_host_reserved_bytes.Value(), 50 * block_bytes);
  EXPECT_EQ(metrics.kv_host_used_bytes.Value(), (3 * (5 + 2) - 2 * (4 + 1) + 50) * block_bytes);
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  ExpectIdle();
  EXPECT_EQ(metrics.kv_host_reserved_bytes.Value(), 0);

  request.sampling.n = 24;
  const absl::Status status = Refusal(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("for the state of attention.policy"));

  // A held prompt keeps what its observers keep; who goes on from them takes its own share only.
  GenerationRequest hold = AskHold("p", 16);
  hold.hold.attentions = {Sketch()};
  Hold(hold);
  EXPECT_EQ(metrics.kv_host_reserved_bytes.Value(), 30 * block_bytes);
  runner.Hold();
  GenerationRequest score = Continue(Ask("s", 16, 0), "p");
  score.score_token_ids = {1, 2};
  score.attention = Sketch();
  const auto scored = Submit(score);
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_EQ(metrics.kv_host_reserved_bytes.Value(), 40 * block_bytes);
  runner.Resume();
  ASSERT_TRUE(scored->WaitDone());
  EXPECT_EQ(metrics.kv_host_reserved_bytes.Value(), 30 * block_bytes);
  DropAndExpectIdle("p");
  EXPECT_EQ(metrics.kv_host_reserved_bytes.Value(), 0);
}

TEST_F(HeldPromptTest, ABudgetForEverythingNeedsNoState) {
  runner.memory = {.own = 1 << 20};
  Start();
  runner.Hold();
  GenerationRequest request = Ask("a", 17, 4);  // 20 rows
  request.attention = Sketch(20);
  request.sampling.n = 2;
  const auto sink = Submit(request);
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_EQ(pool.num_used(), 5 + 1);
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->token_ids(), Expected(request, 0));
  EXPECT_TRUE(sink->finished()[0].attention.has_value());
  request.attention = Sketch(19);
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kResourceExhausted);
  ExpectIdle();
}

TEST(HeldPromptsTest, APromptThatIsKeptIsNotUnused) {
  HeldPrompts prompts;
  ASSERT_TRUE(prompts.Reserve("a"));
  EXPECT_FALSE(prompts.Reserve("a"));
  EXPECT_EQ(prompts.Find("a"), nullptr);
  auto prompt = std::make_unique<HeldPrompt>();
  prompt->name = "a";
  prompt->token_ids = {1, 2};
  prompts.Add(std::move(prompt));
  std::shared_ptr<const HeldPrompt> kept = prompts.Find("a");
  ASSERT_NE(kept, nullptr);
  EXPECT_THAT(kept->token_ids, ElementsAre(1, 2));
  EXPECT_TRUE(prompts.TakeUnused().empty());
  EXPECT_TRUE(prompts.Drop("a"));
  EXPECT_TRUE(prompts.Reserve("a")) << "the name is free at once";
  EXPECT_TRUE(prompts.TakeUnused().empty());
  kept = nullptr;
  EXPECT_EQ(prompts.TakeUnused().size(), 1);
  EXPECT_TRUE(prompts.TakeUnused().empty());
}

}  // namespace
}  // namespace tokenbutler
