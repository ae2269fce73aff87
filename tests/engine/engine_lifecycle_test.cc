#include "base/status_details.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "tests/engine/engine_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ways a request ends before its time, and the engine's own end.
class EngineLifecycleTest : public EngineTest {
 protected:
  // A request that decodes, held before its next step.
  std::shared_ptr<RecordingSink> StartDecoding(GenerationRequest request) {
    runner.Hold();
    auto sink = Submit(std::move(request));
    while (sink->chunks().empty()) {
      EXPECT_TRUE(runner.WaitUntilHeld());
      runner.Permit(1);
      if (sink->WaitChunks(1, absl::Milliseconds(50))) break;
    }
    EXPECT_TRUE(runner.WaitUntilHeld());
    return sink;
  }
};

TEST_F(EngineLifecycleTest, DeadlineInTheQueue) {
  config.max_num_seqs = 1;
  Start();
  const auto running = StartDecoding(Ask("running", 3, 30));
  GenerationRequest request = Ask("late", 3, 5);
  request.deadline = clock.Now() + absl::Seconds(5);
  const auto late = Submit(request);
  EXPECT_EQ(engine->load().requests_waiting, 1);
  EXPECT_EQ(engine->load().waiting_prompt_tokens, 3);
  clock.Advance(absl::Seconds(5));
  runner.Resume();
  ASSERT_TRUE(late->WaitDone());
  EXPECT_EQ(late->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late->status().message()), HasSubstr("in the queue"));
  EXPECT_THAT(late->events(), ElementsAre("done"));
  ASSERT_TRUE(running->WaitDone());
  EXPECT_TRUE(running->status().ok());
  EXPECT_EQ(CounterValue(metrics.deadline_expired_total.queue), 1);
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, DeadlineDuringPrefillStopsTheWorkBetweenChunks) {
  runner.before_run = [this](const StepPlan&) {
    clock.Advance(absl::Seconds(1));
    return absl::OkStatus();
  };
  Start();
  GenerationRequest request = Ask("late", 40 * kChunk, 5);
  request.deadline = clock.Now() + absl::Milliseconds(3500);
  const auto late = Submit(request);
  ASSERT_TRUE(late->WaitDone());
  EXPECT_EQ(late->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late->status().message()), HasSubstr("during prefill"));
  EXPECT_EQ(runner.num_steps(), 4) << "no chunk is run after the deadline";
  EXPECT_EQ(CounterValue(metrics.deadline_expired_total.prefill), 1);
  EXPECT_EQ(CounterValue(metrics.prompt_tokens_total), 0);
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, DeadlineWhileDecodingStopsTheWorkBetweenSteps) {
  runner.before_run = [this](const StepPlan&) {
    clock.Advance(absl::Seconds(1));
    return absl::OkStatus();
  };
  Start();
  GenerationRequest request = Ask("late", 2, 100);
  request.deadline = clock.Now() + absl::Milliseconds(4500);
  const auto late = Submit(request);
  ASSERT_TRUE(late->WaitDone());
  EXPECT_EQ(late->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late->token_ids().size(), 5);
  EXPECT_EQ(runner.num_steps(), 5);
  EXPECT_TRUE(late->finished().empty());
  EXPECT_EQ(CounterValue(metrics.deadline_expired_total.decode), 1);
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, ADeadlineThatHasPassedRunsNothing) {
  Start();
  GenerationRequest request = Ask("late", 2, 100);
  request.deadline = clock.Now();
  const auto late = Submit(request);
  ASSERT_TRUE(late->WaitDone());
  EXPECT_EQ(late->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(runner.num_steps(), 0);
}

TEST_F(EngineLifecycleTest, WaitingTooLongIsResourceExhaustedWithARetryDelay) {
  config.max_num_seqs = 1;
  config.max_queue_time = absl::Seconds(60);
  Start();
  const auto running = StartDecoding(Ask("running", 3, 30));
  const auto waiting = Submit(Ask("waiting", 3, 5));
  clock.Advance(absl::Seconds(60));
  runner.Resume();
  ASSERT_TRUE(waiting->WaitDone());
  EXPECT_EQ(waiting->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(waiting->status().message()), HasSubstr("1m"));
  EXPECT_TRUE(RetryDelay(waiting->status()).has_value());
  ASSERT_TRUE(running->WaitDone());
  EXPECT_TRUE(running->status().ok()) << "the limit is on waiting, not on running";
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, TheQueueIsBoundedInRequestsAndTokens) {
  config.max_num_seqs = 1;
  config.max_waiting_requests = 3;
  config.max_waiting_tokens = 50;
  Start();
  const auto running = StartDecoding(Ask("running", 3, 30));
  const auto a = Submit(Ask("a", 20, 1));
  const auto b = Submit(Ask("b", 20, 1));
  const auto refused = std::make_shared<RecordingSink>();
  const absl::Status tokens = engine->Submit(Ask("c", 11, 1), refused);
  EXPECT_EQ(tokens.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelay(tokens).has_value());
  EXPECT_THAT(std::string(tokens.message()), HasSubstr("40 prompt tokens are waiting"));
  const auto c = Submit(Ask("c", 10, 1));
  const absl::Status count = engine->Submit(Ask("d", 1, 1), refused);
  EXPECT_EQ(count.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelay(count).has_value());
  EXPECT_THAT(std::string(count.message()), HasSubstr("3 requests are waiting"));
  EXPECT_EQ(metrics.requests_waiting.Value(), 3);
  runner.Resume();
  for (const auto& sink : {running, a, b, c}) ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(refused->num_done(), 0) << "a refused request's sink hears nothing";
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, APromptAboveTheTokenBoundIsTakenWhenItWaitsAlone) {
  config.max_waiting_tokens = 50;
  Start();
  const auto sink = Submit(Ask("long", 300, 1));
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok());
}

TEST_F(EngineLifecycleTest, WhatCanNeverFitIsRefusedAtOnceAndWhatCanWaits) {
  config.max_model_len = 5000;
  Start();
  const auto status =
      engine->Submit(Ask("never", 4 * kNumBlocks + 1, 1), std::make_shared<RecordingSink>());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelay(status), std::nullopt);
  EXPECT_EQ(CounterValue(metrics.kv_host_alloc_failures_total), 1);
  const auto holder = StartDecoding(Ask("holder", 3, 500));
  const auto big = Submit(Ask("big", 4 * kNumBlocks, 1));
  runner.Resume();
  ASSERT_TRUE(big->WaitDone());
  EXPECT_TRUE(big->status().ok()) << big->status();
  EXPECT_EQ(holder->num_done(), 1) << "it had to wait for the holder's blocks";
  EXPECT_EQ(CounterValue(metrics.kv_host_alloc_failures_total), 2);
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, ADuplicateRunningIdIsRefusedAndAFinishedOneIsFree) {
  Start();
  const auto first = StartDecoding(Ask("id", 3, 10));
  EXPECT_EQ(engine->Submit(Ask("id", 3, 10), std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kAlreadyExists);
  const auto second = std::make_shared<RecordingSink>();
  first->on_event = nullptr;
  runner.Resume();
  ASSERT_TRUE(first->WaitDone());
  // The id is free before OnDone is called, so this never races.
  Submit(Ask("id", 3, 10), second);
  ASSERT_TRUE(second->WaitDone());
  EXPECT_TRUE(second->status().ok());
}

TEST_F(EngineLifecycleTest, AbortInTheQueue) {
  config.max_num_seqs = 1;
  Start();
  const auto running = StartDecoding(Ask("running", 3, 20));
  GenerationRequest request = Ask("queued", 3, 5);
  request.sampling.n = 1;
  const auto queued = Submit(request);
  EXPECT_TRUE(engine->Abort("queued", absl::OkStatus()));
  EXPECT_TRUE(engine->Abort("queued", absl::InternalError("the first reason counts")));
  EXPECT_FALSE(engine->Abort("unknown", absl::OkStatus()));
  runner.Resume();
  ASSERT_TRUE(queued->WaitDone());
  EXPECT_TRUE(queued->status().ok());
  EXPECT_THAT(queued->events(), ElementsAre("finished", "done"));
  EXPECT_EQ(queued->finished()[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(queued->finished()[0].completion_tokens, 0);
  ASSERT_TRUE(running->WaitDone());
  EXPECT_EQ(CounterValue(metrics.finished_total.cancelled), 1);
  EXPECT_FALSE(engine->Abort("queued", absl::OkStatus())) << "idempotent";
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, AbortDuringPrefill) {
  Start();
  runner.Hold();
  const auto sink = Submit(Ask("r", 40 * kChunk, 5));
  runner.Permit(2);
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_EQ(engine->load().requests_running, 1);
  EXPECT_GT(engine->load().kv_used_bytes, 0);
  const int steps = runner.num_steps();
  EXPECT_TRUE(engine->Abort("r", absl::CancelledError("the client left")));
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(sink->status(), absl::CancelledError("the client left"));
  EXPECT_TRUE(sink->finished().empty());
  EXPECT_EQ(runner.num_steps(), steps) << "only the step in progress was run";
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, AbortWhileDecodingFlushesWhatWasHeldBack) {
  runner.script = [](int position, int32_t) { return 1 + position % 26; };
  Start();
  GenerationRequest request = Ask("r", 3, 100);
  request.stop.strings = {"cdefghijklmnop!"};
  runner.Hold();
  request.sampling.n = 2;
  const auto sink = Submit(request);
  runner.Permit(4);
  while (runner.num_steps() < 5) ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_TRUE(engine->Abort("r", absl::OkStatus()));
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok());
  ASSERT_EQ(sink->finished().size(), 2);
  for (int index = 0; index < 2; ++index) {
    EXPECT_EQ(sink->finished()[index].reason, FinishReason::kCancelled);
    EXPECT_EQ(sink->finished()[index].completion_tokens, 5);
    EXPECT_EQ(sink->text(index), "cdefg");
  }
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, AbortFromInsideTheSink) {
  Start();
  const auto sink = std::make_shared<RecordingSink>();
  std::atomic<int> aborts_taken = 0;
  sink->on_event = [&](const std::string& event) {
    if (event == "chunk") aborts_taken += engine->Abort("r", absl::CancelledError("slow reader"));
    if (event == "done") {
      EXPECT_FALSE(engine->Abort("r", absl::OkStatus()));
    }
  };
  Submit(Ask("r", 3, 100), sink);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(sink->status(), absl::CancelledError("slow reader"));
  EXPECT_EQ(sink->chunks().size(), 1);
  EXPECT_EQ(aborts_taken, 1);
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, AnAbortBetweenTheLastOnFinishedAndOnDoneComesTooLate) {
  Start();
  const auto sink = std::make_shared<RecordingSink>();
  sink->on_event = [&](const std::string& event) {
    if (event == "finished") {
      EXPECT_TRUE(engine->Abort("r", absl::CancelledError("late")));
    }
  };
  Submit(Ask("r", 3, 2), sink);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  const auto next = Submit(Ask("r", 3, 2));
  ASSERT_TRUE(next->WaitDone());
  EXPECT_TRUE(next->status().ok()) << "the note was about the request before";
  EXPECT_EQ(sink->num_done(), 1);
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, AnAbortWithADeadlineReasonCountsAsAnExpiredDeadline) {
  Start();
  const auto sink = StartDecoding(Ask("r", 3, 100));
  EXPECT_TRUE(engine->Abort("r", absl::DeadlineExceededError("the RPC's")));
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  ASSERT_TRUE(engine->WaitUntilIdle(absl::Seconds(60)));
  EXPECT_EQ(CounterValue(metrics.deadline_expired_total.decode), 1);
}

TEST_F(EngineLifecycleTest, NumbersAreTrueWhenOnDoneComes) {
  Start();
  const auto sink = std::make_shared<RecordingSink>();
  EngineLoad at_done;
  double finished_at_done = -1, running_at_done = -1;
  sink->on_event = [&](const std::string& event) {
    if (event != "done") return;
    at_done = engine->load();
    finished_at_done = metrics.finished_total.length.Value();
    running_at_done = metrics.requests_running.Value();
  };
  Submit(Ask("r", 3, 4), sink);
  ASSERT_TRUE(engine->WaitUntilIdle(absl::Seconds(60)));
  EXPECT_EQ(at_done.requests_running, 0);
  EXPECT_EQ(at_done.kv_used_bytes, 0);
  EXPECT_EQ(running_at_done, 0);
  EXPECT_EQ(finished_at_done, 1);
}

TEST_F(EngineLifecycleTest, DrainingRefusesNewRequestsAndFinishesTheRest) {
  config.max_num_seqs = 1;
  Start();
  const auto running = StartDecoding(Ask("running", 3, 20));
  const auto queued = Submit(Ask("queued", 3, 5));
  engine->StartDraining();
  EXPECT_EQ(engine->Submit(Ask("new", 3, 5), std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine->WaitUntilIdle(absl::Milliseconds(20)));
  runner.Resume();
  EXPECT_TRUE(engine->WaitUntilIdle(absl::Seconds(60)));
  EXPECT_EQ(running->num_done(), 1);
  EXPECT_TRUE(running->status().ok());
  EXPECT_TRUE(queued->status().ok()) << "what was accepted is served";
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, AbortAllEndsQueuedAndRunningRequests) {
  config.max_num_seqs = 2;
  Start();
  runner.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 6; ++i) sinks.push_back(Submit(Ask(fmt::format("r{}", i), 3, 50)));
  engine->StartDraining();
  engine->AbortAll(absl::UnavailableError("the grace period is over"));
  runner.Resume();
  EXPECT_TRUE(engine->WaitUntilIdle(absl::Seconds(60)));
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->num_done(), 1);
    EXPECT_EQ(sink->status(), absl::UnavailableError("the grace period is over"));
  }
  ExpectIdle();
}

TEST_F(EngineLifecycleTest, DestructionCancelsWhatIsLeftAndTellsEverySink) {
  config.max_num_seqs = 2;
  Start();
  runner.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(Submit(Ask(fmt::format("r{}", i), 3, 50)));
  ASSERT_TRUE(runner.WaitUntilHeld());
  runner.Resume();
  engine.reset();
  for (const auto& sink : sinks) {
    ASSERT_EQ(sink->num_done(), 1);
    EXPECT_TRUE(sink->status().ok() || absl::IsCancelled(sink->status())) << sink->status();
    EXPECT_EQ(sink.use_count(), 1) << "the engine let go of the sink";
  }
  EXPECT_EQ(pool.num_free(), kNumBlocks);
}

}  // namespace
}  // namespace tokenbutler
