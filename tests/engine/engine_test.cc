#include "engine/engine.h"

#include <cmath>
#include <limits>

#include "base/compute_pool.h"
#include "engine/logprobs.h"
#include "gmock/gmock.h"
#include "tests/engine/engine_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(EngineTest, StreamsWhatTheModelSaysAndTheNumbersAreTrue) {
  runner.before_run = [this](const StepPlan&) {
    clock.Advance(absl::Milliseconds(10));
    return absl::OkStatus();
  };
  Start();
  const GenerationRequest request = Ask("r", /*prompt_tokens=*/19, /*max_tokens=*/6);
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->token_ids(), Expected(request, 0));
  EXPECT_EQ(sink->text(), tokenizer.Decode(sink->token_ids(), true));
  ASSERT_EQ(sink->finished().size(), 1);
  const FinishedOutput finished = sink->finished()[0];
  EXPECT_EQ(finished.reason, FinishReason::kLength);
  EXPECT_EQ(finished.prompt_tokens, 19);
  EXPECT_EQ(finished.completion_tokens, 6);
  EXPECT_EQ(finished.cached_tokens, 0);
  EXPECT_EQ(finished.queue_time, absl::ZeroDuration());
  EXPECT_EQ(finished.prefill_time, absl::Milliseconds(30)) << "three chunks";
  EXPECT_EQ(finished.time_to_first_token, absl::Milliseconds(30));
  EXPECT_EQ(finished.decode_time, absl::Milliseconds(50)) << "five steps after the first token";
  ExpectIdle();
  EXPECT_EQ(CounterValue(metrics.prompt_tokens_total), 19);
  EXPECT_EQ(CounterValue(metrics.generation_tokens_total), 6);
  EXPECT_EQ(CounterValue(metrics.finished_total.length), 1);
  EXPECT_EQ(SampleCount(metrics.time_to_first_token_seconds), 1);
  EXPECT_DOUBLE_EQ(SampleSum(metrics.time_to_first_token_seconds), 0.03);
  EXPECT_EQ(SampleCount(metrics.inter_token_latency_seconds), 5);
  EXPECT_NEAR(SampleSum(metrics.inter_token_latency_seconds), 0.05, 1e-12);
  EXPECT_EQ(SampleCount(metrics.request_queue_seconds), 1);
  EXPECT_DOUBLE_EQ(SampleSum(metrics.request_prefill_seconds), 0.03);
  EXPECT_DOUBLE_EQ(SampleSum(metrics.request_decode_seconds), 0.05);
  EXPECT_NEAR(SampleSum(metrics.e2e_request_latency_seconds), 0.08, 1e-12);
  EXPECT_EQ(metrics.kv_host_capacity_bytes.Value(),
            kNumBlocks * static_cast<double>(TestLayout().block_bytes()));
}

TEST_F(EngineTest, EndsAtEosUnlessIgnored) {
  runner.script = [](int position, int32_t) {
    return position < 6 ? 1 + position : FakeTokenizer::kEos;
  };
  Start();
  GenerationRequest request = Ask("eos", 4, 50);
  request.stop.ignore_eos = false;
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_THAT(sink->token_ids(), ElementsAre(4, 5, 6, FakeTokenizer::kEos));
  EXPECT_EQ(sink->text(), "def");
  EXPECT_EQ(sink->finished()[0].reason, FinishReason::kEos);
  EXPECT_EQ(sink->finished()[0].matched_token_id, FakeTokenizer::kEos);
  EXPECT_EQ(sink->finished()[0].completion_tokens, 4);
  EXPECT_EQ(CounterValue(metrics.finished_total.eos), 1);

  const auto ignoring = Submit(Ask("ignoring", 4, 7));
  ASSERT_TRUE(ignoring->WaitDone());
  EXPECT_EQ(ignoring->finished()[0].reason, FinishReason::kLength);
  EXPECT_EQ(ignoring->token_ids().size(), 7);
  ExpectIdle();
}

TEST_F(EngineTest, EndsAtAStopTokenOrAStopStringWhichStaysHidden) {
  runner.script = [](int position, int32_t) { return 1 + position % 26; };
  Start();
  GenerationRequest by_token = Ask("token", 3, 50);
  by_token.stop.token_ids = {6};
  const auto token = Submit(by_token);
  GenerationRequest by_string = Ask("string", 3, 50);
  by_string.stop.strings = {"zzz", "fgh"};
  const auto string = Submit(by_string);
  ASSERT_TRUE(token->WaitDone());
  ASSERT_TRUE(string->WaitDone());
  EXPECT_EQ(token->text(), "cde");
  EXPECT_EQ(token->finished()[0].reason, FinishReason::kStopToken);
  EXPECT_EQ(token->finished()[0].matched_token_id, 6);
  EXPECT_EQ(string->text(), "cde");
  EXPECT_EQ(string->finished()[0].reason, FinishReason::kStopString);
  EXPECT_EQ(string->finished()[0].matched_stop_string, "fgh");
  EXPECT_EQ(string->finished()[0].completion_tokens, 6);
  EXPECT_EQ(CounterValue(metrics.generation_tokens_total), 4 + 6);
  ExpectIdle();
}

TEST_F(EngineTest, HeldBackTextComesOutAtTheEnd) {
  runner.script = [](int position, int32_t) { return 1 + position % 26; };
  Start();
  GenerationRequest request = Ask("held", 3, 4);
  request.stop.strings = {"efx"};
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(sink->text(), "cdef");
  EXPECT_EQ(sink->finished()[0].reason, FinishReason::kLength);
}

TEST_F(EngineTest, EndsAtTheContextLength) {
  config.max_model_len = 12;
  Start();
  const auto sink = Submit(Ask("r", 9, 100));
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_EQ(sink->finished()[0].reason, FinishReason::kContextLength);
  EXPECT_EQ(sink->finished()[0].completion_tokens, 3);
  const auto full = Submit(Ask("full", 12, 5));
  ASSERT_TRUE(full->WaitDone());
  EXPECT_EQ(full->finished()[0].reason, FinishReason::kContextLength);
  EXPECT_EQ(full->finished()[0].completion_tokens, 0);
  EXPECT_EQ(CounterValue(metrics.finished_total.context_length), 2);
  EXPECT_EQ(engine->Submit(Ask("over", 13, 1), std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kInvalidArgument);
  ExpectIdle();
}

TEST_F(EngineTest, PrefillOnlyRunsThePromptAndSamplesNothing) {
  Start();
  GenerationRequest request = Ask("r", 20, 0);
  request.output.return_progress = true;
  request.sampling.n = 2;
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_TRUE(sink->chunks().empty());
  ASSERT_EQ(sink->finished().size(), 2);
  EXPECT_EQ(sink->finished()[1].index, 1);
  EXPECT_EQ(sink->finished()[0].reason, FinishReason::kLength);
  EXPECT_EQ(sink->finished()[0].completion_tokens, 0);
  std::vector<int> processed;
  for (const PrefillProgress& progress : sink->progress()) {
    EXPECT_EQ(progress.total_tokens, 20);
    processed.push_back(progress.processed_tokens);
  }
  EXPECT_THAT(processed, ElementsAre(8, 16, 20));
  EXPECT_EQ(CounterValue(metrics.generation_tokens_total), 0);
  EXPECT_EQ(SampleCount(metrics.time_to_first_token_seconds), 0);
  ExpectIdle();
}

class CompletionsTest : public EngineTest, public testing::WithParamInterface<int> {};

TEST_P(CompletionsTest, EachGoesItsOwnWayFromOnePrefill) {
  const int prompt_tokens = GetParam();
  Start();
  GenerationRequest request = Ask("r", prompt_tokens, 15);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 99;
  request.sampling.n = 4;
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  ASSERT_EQ(sink->finished().size(), 4);
  std::set<std::vector<int32_t>> different;
  for (int index = 0; index < 4; ++index) {
    EXPECT_EQ(sink->token_ids(index), Expected(request, 99, index)) << "completion " << index;
    different.insert(sink->token_ids(index));
  }
  EXPECT_EQ(different.size(), 4);
  EXPECT_EQ(runner.num_block_copies(), prompt_tokens % kBlockSize == 0 ? 0 : 3);
  EXPECT_EQ(CounterValue(metrics.prompt_tokens_total), prompt_tokens) << "one prefill";
  EXPECT_EQ(CounterValue(metrics.generation_tokens_total), 60);
  EXPECT_EQ(CounterValue(metrics.finished_total.length), 4);
  EXPECT_EQ(SampleCount(metrics.e2e_request_latency_seconds), 1);
  ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(PromptTokens, CompletionsTest, testing::Values(1, 3, 4, 5, 16, 18));

TEST_F(EngineTest, ADrawnSeedIsReportedAndReproduces) {
  Start();
  GenerationRequest request = Ask("r", 5, 12);
  request.sampling.temperature = 1.0f;
  const auto first = Submit(request);
  ASSERT_TRUE(first->WaitDone());
  const uint64_t seed = first->finished()[0].seed;
  request.request_id = "again";
  request.sampling.seed = seed;
  const auto again = Submit(request);
  ASSERT_TRUE(again->WaitDone());
  EXPECT_EQ(again->token_ids(), first->token_ids());
  EXPECT_EQ(again->finished()[0].seed, seed);
  request.request_id = "other";
  request.sampling.seed = std::nullopt;
  const auto other = Submit(request);
  ASSERT_TRUE(other->WaitDone());
  EXPECT_NE(other->token_ids(), first->token_ids());
}

TEST_F(EngineTest, TheSameSeedGivesTheSameTokensAloneAndBesideFifteenOthers) {
  ComputePool threads(3);
  compute_pool = &threads;
  config.prefill_chunk_tokens = 64;
  Start();
  GenerationRequest request = Ask("alone", 21, 40);
  request.sampling.temperature = 0.9f;
  request.sampling.top_p = 0.95f;
  request.sampling.repetition_penalty = 1.1f;
  request.sampling.seed = 1234;
  const auto alone = Submit(request);
  ASSERT_TRUE(alone->WaitDone());
  runner.Hold();
  std::vector<std::shared_ptr<RecordingSink>> others;
  for (int i = 0; i < 15; ++i) {
    GenerationRequest other = Ask(fmt::format("other{}", i), 3 + 3 * i, 30 + i, /*salt=*/i + 1);
    other.sampling.temperature = 1.2f;
    others.push_back(Submit(other));
  }
  request.request_id = "beside";
  const auto beside = Submit(request);
  runner.Resume();
  ASSERT_TRUE(beside->WaitDone());
  EXPECT_EQ(beside->token_ids(), alone->token_ids());
  for (const auto& other : others) ASSERT_TRUE(other->WaitDone());
  size_t widest = 0;
  for (const auto& step : runner.steps()) widest = std::max(widest, step.size());
  EXPECT_GE(widest, 12) << "they did run together";
  ExpectIdle();
  engine.reset();
}

TEST_F(EngineTest, ScoringFeedsTheTokensAndReturnsEveryPositionsLogits) {
  Start();
  GenerationRequest request = Ask("score", 10, 0);
  request.score_token_ids = {5, 9, 2, 33, 7, 7};
  const auto neighbour = Submit(Ask("neighbour", 3, 20));
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  const auto logits = sink->logits();
  ASSERT_EQ(logits.size(), 7);
  std::vector<int32_t> tokens = request.prompt_token_ids;
  for (int position = 0; position < 7; ++position) {
    EXPECT_EQ(logits[position].first, position);
    EXPECT_EQ(logits[position].second, runner.LogitsAfter(tokens)) << "position " << position;
    if (position < 6) tokens.push_back(request.score_token_ids[position]);
  }
  EXPECT_TRUE(sink->chunks().empty());
  EXPECT_EQ(sink->finished()[0].reason, FinishReason::kLength);
  EXPECT_EQ(sink->finished()[0].completion_tokens, 0);
  ASSERT_TRUE(neighbour->WaitDone());
  EXPECT_EQ(CounterValue(metrics.generation_tokens_total), 20) << "scored tokens are not generated";
  ExpectIdle();
}

TEST_F(EngineTest, PromptLogprobsComeInOrderForEveryTokenButTheFirst) {
  ComputePool threads(2);
  compute_pool = &threads;
  Start();
  GenerationRequest request = Ask("r", 21, 3);
  request.logprobs = {.top = 3, .include_prompt = true};
  const auto sink = Submit(request);
  GenerationRequest single = Ask("single", 1, 1);
  single.logprobs.include_prompt = true;
  const auto single_sink = Submit(single);
  ASSERT_TRUE(sink->WaitDone());
  const std::vector<int32_t>& prompt = request.prompt_token_ids;
  const auto logprobs = sink->prompt_logprobs();
  ASSERT_EQ(logprobs.size(), 20);
  for (int i = 0; i < 20; ++i) {
    const auto expected = ComputeLogprobs(
        runner.LogitsAfter(absl::MakeConstSpan(prompt).subspan(0, i + 1)), prompt[i + 1], 3);
    EXPECT_EQ(logprobs[i].chosen.token_id, prompt[i + 1]);
    EXPECT_EQ(logprobs[i].chosen.logprob, expected->chosen.logprob);
    ASSERT_EQ(logprobs[i].top.size(), 3);
    EXPECT_EQ(logprobs[i].top[0].token_id, expected->top[0].token_id);
  }
  EXPECT_EQ(sink->token_ids(), Expected(request, 0)) << "sampling sees the last row";
  const auto chunks = sink->chunks();
  ASSERT_EQ(chunks.size(), 3);
  ASSERT_EQ(chunks[0].logprobs.size(), 1);
  EXPECT_EQ(chunks[0].logprobs[0].chosen.token_id, chunks[0].token_ids[0]);
  EXPECT_EQ(chunks[0].logprobs[0].chosen.rank, 1);
  EXPECT_EQ(chunks[0].logprobs[0].top.size(), 3);
  ASSERT_TRUE(single_sink->WaitDone());
  EXPECT_TRUE(single_sink->prompt_logprobs().empty());
  EXPECT_EQ(single_sink->token_ids().size(), 1);
  engine.reset();
}

TEST_F(EngineTest, APromptOfManyChunksNeverHoldsUpDecoders) {
  runner.Hold();
  Start();
  std::vector<std::shared_ptr<RecordingSink>> decoders;
  for (int i = 0; i < 4; ++i) {
    decoders.push_back(Submit(Ask(fmt::format("decoder{}", i), 2, 100, i)));
  }
  runner.Permit(3);
  for (const auto& decoder : decoders) ASSERT_TRUE(decoder->WaitChunks(1));
  const auto prefill = Submit(Ask("prefill", 30 * kChunk, 1, 9));
  const auto behind = Submit(Ask("behind", 5, 1, 10));
  runner.Resume();
  ASSERT_TRUE(prefill->WaitDone());
  ASSERT_TRUE(behind->WaitDone());
  for (const auto& decoder : decoders) ASSERT_TRUE(decoder->WaitDone());
  int prefill_steps = 0, behind_served_at = -1;
  for (const auto& step : runner.steps()) {
    int decoding = 0, tokens = 0;
    for (const auto& item : step) {
      decoding += item.decode;
      tokens += item.decode ? 0 : item.num_tokens;
      if (!item.decode && item.num_tokens == 5) behind_served_at = prefill_steps;
    }
    EXPECT_LE(tokens, kChunk);
    if (tokens > 2 * 4) ADD_FAILURE() << "more than a chunk";
    if (tokens == kChunk && decoding > 0) {
      ++prefill_steps;
      EXPECT_EQ(decoding, 4);
    }
  }
  EXPECT_GE(prefill_steps, 30);
  EXPECT_GE(behind_served_at, 0);
  EXPECT_LE(behind_served_at, 2) << "the short prompt did not wait for the long one";
  ExpectIdle();
}

TEST_F(EngineTest, OneBadSequenceDoesNotHurtItsNeighbours) {
  runner.edit_logits = [](int position, int32_t, absl::Span<float> logits) {
    // Only the poisoned request's prompt is this long before its third token.
    if (position == 300) logits[3] = std::numeric_limits<float>::quiet_NaN();
  };
  Start();
  const GenerationRequest fine_request = Ask("fine", 5, 30);
  const auto bad = Submit(Ask("bad", 299, 30));
  const auto fine = Submit(fine_request);
  ASSERT_TRUE(bad->WaitDone());
  ASSERT_TRUE(fine->WaitDone());
  EXPECT_EQ(bad->status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(bad->finished().empty());
  EXPECT_EQ(bad->token_ids().size(), 2);
  EXPECT_TRUE(fine->status().ok()) << fine->status();
  EXPECT_EQ(fine->token_ids(), Expected(fine_request, 0));
  ExpectIdle();
}

TEST_F(EngineTest, AFailingStepIsRunItemByItem) {
  // Every plan that begins the culprit's prompt fails.
  constexpr int32_t kCulprit = 61;
  runner.before_run = [](const StepPlan& plan) {
    for (const auto* items : {&plan.decode, &plan.prefill_chunks}) {
      for (const StepItem& item : *items) {
        if (item.start_position == 0 && item.token_ids[0] == kCulprit)
          return absl::ResourceExhaustedError("no memory");
      }
    }
    return absl::OkStatus();
  };
  runner.Hold();
  Start();
  const GenerationRequest decoding = Ask("decoding", 3, 20);
  const auto decoder = Submit(decoding);
  runner.Permit(2);
  ASSERT_TRUE(decoder->WaitChunks(1));
  GenerationRequest request = Ask("culprit", 4, 5);
  request.prompt_token_ids[0] = kCulprit;
  const auto culprit = Submit(request);
  const GenerationRequest sharing = Ask("sharing", 3, 20, /*salt=*/4);
  const auto sharer = Submit(sharing);
  runner.Resume();
  ASSERT_TRUE(culprit->WaitDone());
  EXPECT_EQ(culprit->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(culprit->status().message()), HasSubstr("no memory"));
  ASSERT_TRUE(decoder->WaitDone());
  ASSERT_TRUE(sharer->WaitDone());
  EXPECT_EQ(decoder->token_ids(), Expected(decoding, 0));
  EXPECT_EQ(sharer->token_ids(), Expected(sharing, 0));
  ExpectIdle();
}

TEST_F(EngineTest, TheEngineGoesOnAfterARunnerThatFailsAltogether) {
  std::atomic<bool> broken = true;
  runner.before_run = [&broken](const StepPlan&) {
    return broken ? absl::UnknownError("broken") : absl::OkStatus();
  };
  Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(Submit(Ask(fmt::format("broken{}", i), 5, 5)));
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->WaitDone());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInternal);
  }
  ExpectIdle();
  broken = false;
  const GenerationRequest request = Ask("next", 5, 5);
  const auto next = Submit(request);
  ASSERT_TRUE(next->WaitDone());
  EXPECT_EQ(next->token_ids(), Expected(request, 0));
  engine.reset();
}

TEST_F(EngineTest, CreateNamesABadOption) {
  config.max_num_seqs = 0;
  Engine::Parts parts{.runner = &runner,
                      .tokenizer = &tokenizer,
                      .block_pool = &pool,
                      .clock = &clock,
                      .metrics = &metrics};
  EXPECT_THAT(std::string(Engine::Create(config, parts).status().message()),
              HasSubstr("max_num_seqs is 0"));
  config.max_num_seqs = 1;
  config.max_model_len = 0;
  EXPECT_THAT(std::string(Engine::Create(config, parts).status().message()),
              HasSubstr("max_model_len is 0"));
}

}  // namespace
}  // namespace tokenbutler
