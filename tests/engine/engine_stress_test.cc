#include <random>
#include <thread>

#include "base/compute_pool.h"
#include "base/status_details.h"
#include "tests/engine/engine_fixture.h"

namespace tokenbutler {
namespace {

// A thousand requests from four threads, with cancels and deadlines at random moments and a runner
// that fails now and then: every accepted request ends exactly once, those that were let alone get
// exactly the model's tokens, and nothing is held afterwards.
TEST_F(EngineTest, AThousandRandomRequestsCancelsAndDeadlines) {
  constexpr int kThreads = 4, kRequests = 250;
  RealClock real_clock;
  ComputePool threads(2);
  clock_in_use = &real_clock;
  compute_pool = &threads;
  config.max_num_seqs = 12;
  config.max_waiting_requests = 60;
  runner.record = false;
  std::mt19937 failures(1);
  runner.before_run = [&failures](const StepPlan& plan) {
    // Plans of one item succeed, so that a failing step never ends a request.
    const bool single = plan.decode.size() + plan.prefill_chunks.size() == 1;
    return !single && failures() % 50 == 0 ? absl::InternalError("now and then") : absl::OkStatus();
  };
  Start();
  struct Sent {
    GenerationRequest request;
    std::shared_ptr<RecordingSink> sink;
    bool left_alone = true;
  };
  std::vector<std::vector<Sent>> sent(kThreads);
  std::atomic<int> refused = 0;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937 random(100 + t);
      for (int i = 0; i < kRequests; ++i) {
        Sent one;
        one.request = Ask(fmt::format("{}-{}", t, i), 1 + static_cast<int>(random() % 60),
                          static_cast<int>(random() % 40), /*salt=*/static_cast<int>(random() % 7));
        one.request.sampling.temperature = random() % 2 == 0 ? 0.0f : 1.0f;
        one.request.sampling.n = 1 + static_cast<int>(random() % 3);
        one.request.priority = static_cast<int>(random() % 3);
        one.sink = std::make_shared<RecordingSink>();
        if (random() % 4 == 0) {
          one.left_alone = false;
          one.request.deadline = real_clock.Now() + absl::Microseconds(random() % 3000);
        }
        for (;;) {
          const absl::Status status = engine->Submit(one.request, one.sink);
          if (status.ok()) break;
          ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
          ASSERT_TRUE(RetryDelay(status).has_value()) << status;
          ++refused;
          absl::SleepFor(absl::Milliseconds(1));
        }
        if (random() % 3 == 0) {
          one.left_alone = false;
          absl::SleepFor(absl::Microseconds(random() % 500));
          engine->Abort(one.request.request_id,
                        random() % 2 == 0 ? absl::OkStatus() : absl::CancelledError("client"));
        }
        if (random() % 16 == 0) (void)engine->load();
        sent[t].push_back(std::move(one));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
  double tokens_seen = 0;
  int left_alone = 0;
  for (const auto& list : sent) {
    for (const Sent& one : list) {
      ASSERT_EQ(one.sink->num_done(), 1) << one.request.request_id;
      for (const FinishedOutput& finished : one.sink->finished()) {
        tokens_seen += finished.completion_tokens;
      }
      if (!one.left_alone) continue;
      ++left_alone;
      ASSERT_TRUE(one.sink->status().ok()) << one.sink->status();
      ASSERT_EQ(one.sink->finished().size(), one.request.sampling.n);
      for (int index = 0; index < one.request.sampling.n; ++index) {
        ASSERT_EQ(one.sink->token_ids(index),
                  Expected(one.request, one.sink->finished()[0].seed, index));
      }
    }
  }
  EXPECT_GT(left_alone, 50);
  RecordProperty("refused", refused);
  EXPECT_GE(metrics.generation_tokens_total.Value(), tokens_seen);
  engine.reset();
}

// Aborts and AbortAll against submits, from several threads at once.
TEST_F(EngineTest, AbortsRaceWithSubmitsAndEnds) {
  config.max_waiting_requests = 1000;
  runner.record = false;
  Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks(300);
  for (auto& sink : sinks) sink = std::make_shared<RecordingSink>();
  std::atomic<bool> stop = false;
  std::vector<std::thread> aborters;
  for (int t = 0; t < 3; ++t) {
    aborters.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!stop) {
        engine->Abort(fmt::format("r{}", random() % 300), absl::CancelledError("race"));
        if (random() % 200 == 0) engine->AbortAll(absl::OkStatus());
      }
    });
  }
  for (int i = 0; i < 300; ++i) Submit(Ask(fmt::format("r{}", i), 1 + i % 30, i % 10), sinks[i]);
  EXPECT_TRUE(engine->WaitUntilIdle(absl::Seconds(100)));
  stop = true;
  for (std::thread& aborter : aborters) aborter.join();
  for (const auto& sink : sinks) EXPECT_EQ(sink->num_done(), 1);
  ExpectIdle();
}

}  // namespace
}  // namespace tokenbutler
