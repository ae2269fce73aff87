// Counts allocations of the engine thread while sequences decode steadily. A program of its own,
// because counting replaces malloc.

#include <optional>

#include "tests/engine/engine_fixture.h"
#include "tests/testing/allocation_counter.h"

namespace tokenbutler {
namespace {

// Keeps nothing, so that it allocates nothing.
class CountingSink : public TokenSink {
 public:
  void OnProgress(const PrefillProgress&) override {}
  void OnPromptLogprobs(std::vector<PositionLogprobs>) override {}
  void OnLogits(int, absl::Span<const float>) override {}
  void OnChunk(const OutputChunk& chunk) override { text_bytes += chunk.text.size(); }
  void OnFinished(FinishedOutput) override {}
  void OnDone(absl::Status) override {}

  size_t text_bytes = 0;
};

class EngineAllocationTest : public EngineTest {
 protected:
  // The engine thread's allocations from step `from` to step `to`.
  long AllocationsBetween(int from, int to, int num_requests, const GenerationRequest& asked) {
    runner.record = false;
    int step = 0;
    long counted = -1;
    std::optional<AllocationCounter> counter;
    runner.before_run = [&](const StepPlan&) {
      ++step;
      if (step == from) counter.emplace();
      if (step == to) counted = static_cast<long>(counter->num_allocations());
      return absl::OkStatus();
    };
    Start();
    for (int i = 0; i < num_requests; ++i) {
      GenerationRequest request = asked;
      request.request_id = std::to_string(i);
      EXPECT_TRUE(engine->Submit(request, std::make_shared<CountingSink>()).ok());
    }
    EXPECT_TRUE(engine->WaitUntilIdle(absl::Seconds(60)));
    engine.reset();
    return counted;
  }
};

TEST_F(EngineAllocationTest, SteadyDecodingAllocatesNothing) {
  GenerationRequest request = Ask("", 5, 150);
  request.output.return_token_ids = false;
  EXPECT_EQ(AllocationsBetween(40, 140, /*num_requests=*/8, request), 0);
}

TEST_F(EngineAllocationTest, CountingWhatSparseAttentionDoesAllocatesNothing) {
  GenerationRequest request = Ask("", 5, 100);
  request.output.return_token_ids = false;
  request.attention.policy = AttentionPolicy::kSketch;
  EXPECT_EQ(AllocationsBetween(20, 90, /*num_requests=*/6, request), 0);
}

TEST_F(EngineAllocationTest, SamplingWithPenaltiesAllocatesNothing) {
  GenerationRequest request = Ask("", 5, 150);
  request.output.return_token_ids = false;
  request.sampling.temperature = 1.0f;
  request.sampling.top_p = 0.9f;
  request.sampling.top_k = 20;
  request.sampling.repetition_penalty = 1.1f;
  request.sampling.presence_penalty = 0.5f;
  EXPECT_EQ(AllocationsBetween(40, 140, /*num_requests=*/8, request), 0);
}

TEST_F(EngineAllocationTest, ALongPrefillBesideDecodersAllocatesNothing) {
  GenerationRequest request = Ask("", 390, 5);
  request.output.return_token_ids = false;
  request.output.return_progress = true;
  EXPECT_EQ(AllocationsBetween(4, 40, /*num_requests=*/2, request), 0);
}

TEST_F(EngineAllocationTest, TokenIdsAllocateNothingEither) {
  EXPECT_EQ(AllocationsBetween(40, 140, /*num_requests=*/1, Ask("", 5, 150)), 0);
}

// The exception, and the proof that the counter counts.
TEST_F(EngineAllocationTest, LogprobsAreAFewAllocationsPerToken) {
  GenerationRequest request = Ask("", 5, 150);
  request.logprobs.top = 3;
  const long counted = AllocationsBetween(40, 140, /*num_requests=*/1, request);
  EXPECT_GE(counted, 100);
  EXPECT_LE(counted, 400);
}

}  // namespace
}  // namespace tokenbutler
