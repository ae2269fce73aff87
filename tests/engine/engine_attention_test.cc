// Sparse sequences through the engine: their states and state blocks, and what is told about them.

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/engine/engine_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

class EngineAttentionTest : public EngineTest {
 protected:
  static GenerationRequest AskSparse(std::string id, int prompt_tokens, int max_tokens,
                                     int salt = 0) {
    GenerationRequest request = Ask(std::move(id), prompt_tokens, max_tokens, salt);
    request.attention.policy = AttentionPolicy::kSketch;
    // A budget that holds all tokens would make it as good as dense.
    request.attention.sink_tokens = 0;
    request.attention.local_window = 1;
    request.attention.token_budget = 2;
    return request;
  }
};

// The block size is 4 and a state block holds the records of 4 KV blocks.
TEST_F(EngineAttentionTest, StateBlocksAreTakenWithTheOthersAndGivenBack) {
  Start();
  runner.Hold();
  const auto sink = Submit(AskSparse("a", 17, 10));  // 26 rows: 7 blocks and 2 of state
  ASSERT_TRUE(runner.WaitUntilHeld());
  EXPECT_EQ(pool.num_used(), 9);
  EXPECT_EQ(runner.num_states(), 1);
  runner.Resume();
  ASSERT_TRUE(sink->WaitDone());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->token_ids(), Expected(AskSparse("a", 17, 10), 0));
  ExpectIdle();
}

TEST_F(EngineAttentionTest, ForksShareWholeStateBlocksAndCopyThePartialOne) {
  Start();
  for (const int prompt : {1, 3, 4, 5, 15, 16, 17, 20, 31, 32, 33, 47, 48, 63, 64, 65}) {
    GenerationRequest request = AskSparse(std::to_string(prompt), prompt, 40, prompt);
    request.sampling.n = 3;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    int used = 0;
    runner.before_run = [&](const StepPlan&) {
      used = pool.num_used();
      return absl::OkStatus();
    };
    const auto sink = Submit(request);
    ASSERT_TRUE(sink->WaitDone());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(sink->token_ids(i), Expected(request, 7, i)) << prompt << " tokens, fork " << i;
    }
    const int blocks = (prompt + 39 + 3) / 4;
    const int states = (blocks + 3) / 4;
    EXPECT_EQ(used, 3 * (blocks + states) - 2 * (prompt / 4 + prompt / 16)) << prompt;
    ExpectIdle();
  }
}

TEST_F(EngineAttentionTest, DenseAndSparseShareABatch) {
  Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(i % 2 == 0 ? Ask(std::to_string(i), 5 + 7 * i, 30, i)
                                  : AskSparse(std::to_string(i), 5 + 7 * i, 30, i));
    sinks.push_back(Submit(requests.back()));
  }
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(sinks[i]->WaitDone());
    EXPECT_EQ(sinks[i]->token_ids(), Expected(requests[i], 0)) << i;
    EXPECT_EQ(sinks[i]->finished()[0].attention.has_value(), i % 2 == 1) << i;
  }
  ExpectIdle();
}

TEST_F(EngineAttentionTest, AbortAndDeadlineFreeStates) {
  Start();
  GenerationRequest forks = AskSparse("forks", 18, 100);
  forks.sampling.n = 4;
  const auto cancelled = std::make_shared<RecordingSink>();
  const auto failed = std::make_shared<RecordingSink>();
  cancelled->on_event = [&](const std::string& event) {
    if (event == "chunk") engine->Abort("forks", absl::OkStatus());
  };
  failed->on_event = [&](const std::string& event) {
    if (event == "progress") engine->Abort("prefill", absl::DeadlineExceededError("late"));
  };
  GenerationRequest prefill = AskSparse("prefill", 300, 3);
  prefill.output.return_progress = true;
  Submit(forks, cancelled);
  Submit(prefill, failed);
  ASSERT_TRUE(cancelled->WaitDone());
  ASSERT_TRUE(failed->WaitDone());
  EXPECT_TRUE(cancelled->status().ok());
  EXPECT_EQ(cancelled->finished().size(), 4);
  EXPECT_EQ(failed->status().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectIdle();
}

TEST_F(EngineAttentionTest, AStateThatCannotBeMadeEndsItsRequestOnly) {
  config.max_num_seqs = 1;  // so that the next is admitted in the same look at the queue
  runner.before_state = [](const AttentionParams& params) -> absl::Status {
    if (params.misses == MissRule::kDeferred)
      return absl::ResourceExhaustedError("no room on the device");
    return absl::OkStatus();
  };
  Start();
  runner.Hold();
  const auto before = Submit(Ask("before", 3, 2));
  GenerationRequest request = AskSparse("bad", 3, 2);
  request.attention.misses = MissRule::kDeferred;
  const auto bad = Submit(request);
  const auto good = Submit(AskSparse("good", 3, 2));
  runner.Resume();
  ASSERT_TRUE(bad->WaitDone());
  ASSERT_TRUE(good->WaitDone());
  EXPECT_EQ(bad->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(good->status().ok()) << good->status();
  EXPECT_TRUE(before->status().ok()) << before->status();
  ExpectIdle();
}

// Four states fit the device tier; a request of three completions needs three.
TEST_F(EngineAttentionTest, WhatTheDeviceHasNoRoomForNowWaits) {
  runner.device_states = 4;
  Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(i % 4 == 3 ? Ask(std::to_string(i), 9, 6, i)
                                  : AskSparse(std::to_string(i), 9, 6, i));
    requests.back().sampling.n = i % 4 == 1 ? 3 : 1;
    sinks.push_back(Submit(requests.back()));
  }
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(sinks[i]->WaitDone());
    ASSERT_TRUE(sinks[i]->status().ok()) << sinks[i]->status();
    for (int index = 0; index < requests[i].sampling.n; ++index) {
      EXPECT_EQ(sinks[i]->token_ids(index), Expected(requests[i], 0, index)) << i;
    }
  }
  GenerationRequest never = AskSparse("never", 9, 6);
  never.sampling.n = 5;
  const auto refused = Submit(never);
  ASSERT_TRUE(refused->WaitDone());
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kResourceExhausted);
  ExpectIdle();
  EXPECT_EQ(metrics.kv_device_used_bytes.Value(), 0);
}

TEST_F(EngineAttentionTest, AForkThatCannotBeMadeEndsItsRequestOnly) {
  int made = 0;
  runner.before_state = [&](const AttentionParams&) -> absl::Status {
    return ++made == 3 ? absl::ResourceExhaustedError("no room on the device") : absl::OkStatus();
  };
  Start();
  GenerationRequest request = AskSparse("bad", 5, 5);
  request.sampling.n = 4;
  const auto bad = Submit(request);
  ASSERT_TRUE(bad->WaitDone());
  EXPECT_EQ(bad->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(bad->chunks().empty());
  const auto good = Submit(AskSparse("good", 3, 2));
  ASSERT_TRUE(good->WaitDone());
  EXPECT_TRUE(good->status().ok()) << good->status();
  ExpectIdle();
}

TEST_F(EngineAttentionTest, ScoringGoesThroughTheSparsePath) {
  Start();
  GenerationRequest request = AskSparse("score", 20, 0);
  request.score_token_ids = {5, 6, 7, 8};
  const auto sink = Submit(request);
  ASSERT_TRUE(sink->WaitDone());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  ASSERT_EQ(sink->logits().size(), 5);
  std::vector<int32_t> tokens = request.prompt_token_ids;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(sink->logits()[i].second, runner.LogitsAfter(tokens)) << i;
    if (i < 4) tokens.push_back(request.score_token_ids[i]);
  }
  const auto attention = sink->finished()[0].attention;
  ASSERT_TRUE(attention.has_value());
  EXPECT_EQ(attention->attended_lists, 4);
  EXPECT_EQ(attention->context_tokens, 21 + 22 + 23 + 24);
  ExpectIdle();
}

TEST_F(EngineAttentionTest, ParametersThatTheRunnerRefusesAreRefusedAtSubmit) {
  Start();
  GenerationRequest request = AskSparse("bad", 3, 2);
  request.attention.local_window = 200;
  request.attention.token_budget = 100;
  const absl::Status status = engine->Submit(request, std::make_shared<RecordingSink>());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("attention.token_budget is 100"));
  ExpectIdle();
}

// Every metric of sparse attention, counted a second time from what the runner was made to report.
TEST_F(EngineAttentionTest, MetricsAndFinishedSayWhatTheStatesDid) {
  AttentionStats total;
  std::vector<double> selected, ratios;
  runner.attend = [&](const AttentionParams& params, int context_len, AttentionStats* stats) {
    const int attended = std::min(params.token_budget, context_len);
    AttentionStats step;
    step.attended_lists = 6;
    step.attended_tokens = int64_t{6} * attended;
    step.context_tokens = int64_t{6} * context_len;
    step.fallbacks = {.short_context = context_len % 2, .first_layer = 2, .window = 3};
    step.offload = {.host_to_device_bytes = 1000 + context_len,
                    .prefetched_bytes = 300,
                    .device_to_host_bytes = 64,
                    .lookups = 12,
                    .hits = 9,
                    .prefetch_issued = 4,
                    .prefetch_late = 1,
                    .transfer = absl::Milliseconds(3),
                    .stall = absl::Milliseconds(2)};
    step.predictor = absl::Milliseconds(5);
    if (context_len % 3 == 0) {
      step.recall_probes = 2;
      step.recall_sum = 1.5;
    }
    selected.push_back(attended);
    ratios.push_back(static_cast<double>(attended) / context_len);
    for (AttentionStats* to : {stats, &total}) {
      to->attended_lists += step.attended_lists;
      to->attended_tokens += step.attended_tokens;
      to->context_tokens += step.context_tokens;
      to->fallbacks.short_context += step.fallbacks.short_context;
      to->fallbacks.first_layer += step.fallbacks.first_layer;
      to->fallbacks.window += step.fallbacks.window;
      to->offload.host_to_device_bytes += step.offload.host_to_device_bytes;
      to->offload.prefetched_bytes += step.offload.prefetched_bytes;
      to->offload.device_to_host_bytes += step.offload.device_to_host_bytes;
      to->offload.lookups += step.offload.lookups;
      to->offload.hits += step.offload.hits;
      to->offload.prefetch_issued += step.offload.prefetch_issued;
      to->offload.prefetch_late += step.offload.prefetch_late;
      to->offload.transfer += step.offload.transfer;
      to->offload.stall += step.offload.stall;
      to->predictor += step.predictor;
      to->recall_sum += step.recall_sum;
      to->recall_probes += step.recall_probes;
    }
  };
  Start();
  GenerationRequest request = AskSparse("a", 30, 12);
  request.attention.token_budget = 35;
  request.attention.sink_tokens = 1;
  request.attention.local_window = 4;
  request.sampling.n = 2;
  const auto sink = Submit(request);
  const auto dense = Submit(Ask("dense", 30, 12));
  ASSERT_TRUE(sink->WaitDone());
  ASSERT_TRUE(dense->WaitDone());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  ExpectIdle();

  ASSERT_EQ(selected.size(), 2 * 11) << "the first token of each comes from the prefill";
  const auto count = [](const prometheus::Histogram& histogram) { return SampleCount(histogram); };
  const auto sum = [](const std::vector<double>& values) {
    double total = 0;
    for (const double value : values) total += value;
    return total;
  };
  EXPECT_EQ(count(metrics.selected_tokens), 22);
  EXPECT_NEAR(SampleSum(metrics.selected_tokens), sum(selected), 1e-6);
  EXPECT_NEAR(SampleSum(metrics.attended_ratio), sum(ratios), 1e-9);
  EXPECT_EQ(count(metrics.predictor_seconds), 22);
  EXPECT_NEAR(SampleSum(metrics.predictor_seconds), 22 * 0.005, 1e-9);
  EXPECT_NEAR(SampleSum(metrics.decode_stall_seconds), 22 * 0.002, 1e-9);
  EXPECT_NEAR(SampleSum(metrics.kv_transfer_seconds), 22 * 0.003, 1e-9);
  // Contexts are 31 to 41: 33, 36 and 39 are probed, in both completions.
  EXPECT_EQ(count(metrics.selection_recall_ratio), 6);
  EXPECT_NEAR(SampleSum(metrics.selection_recall_ratio), 6 * 0.75, 1e-9);
  EXPECT_EQ(metrics.kv_transfer_bytes_total.fetch.Value(),
            total.offload.host_to_device_bytes - 22 * 300);
  EXPECT_EQ(metrics.kv_transfer_bytes_total.prefetch.Value(), 22 * 300);
  EXPECT_EQ(metrics.kv_transfer_bytes_total.write_back.Value(), 22 * 64);
  EXPECT_EQ(metrics.hot_buffer_lookups_total.Value(), 22 * 12);
  EXPECT_EQ(metrics.hot_buffer_hits_total.Value(), 22 * 9);
  EXPECT_EQ(metrics.prefetch_issued_total.Value(), 22 * 4);
  EXPECT_EQ(metrics.prefetch_late_total.Value(), 22);
  EXPECT_EQ(metrics.dense_fallback_total.short_context.Value(), 2 * 6);
  EXPECT_EQ(metrics.dense_fallback_total.dense_layer.Value(), 22 * 2);
  EXPECT_EQ(metrics.dense_fallback_total.window.Value(), 22 * 3);

  int64_t attended = 0;
  int64_t bytes = 0;
  for (const FinishedOutput& output : sink->finished()) {
    ASSERT_TRUE(output.attention.has_value());
    EXPECT_EQ(output.attention->attended_lists, 11 * 6);
    EXPECT_EQ(output.attention->offload.hits, 11 * 9);
    EXPECT_EQ(output.attention->offload.stall, absl::Milliseconds(22));
    attended += output.attention->attended_tokens;
    bytes += output.attention->offload.host_to_device_bytes;
  }
  EXPECT_EQ(attended, total.attended_tokens);
  EXPECT_EQ(bytes, total.offload.host_to_device_bytes);
  EXPECT_FALSE(dense->finished()[0].attention.has_value());
}

}  // namespace
}  // namespace tokenbutler
