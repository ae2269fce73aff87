// Sparse decoding through a device tier with a memory of its own: the logits, bit for bit, of the
// device tier that is the host memory, for every policy.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "engine/selection/attention_params.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_conversation.h"

namespace tokenbutler {
namespace {

constexpr int64_t kDeviceBytes = int64_t{16} << 20;

std::unique_ptr<LoadedRunner> LoadTiny(LoadedRunner::Options options) {
  options.num_blocks = 512;
  return LoadTiny("qwen2-yarn", options);
}

// Workers that take their time, each transfer another.
KvStore::StagedOptions SlowDevice() {
  auto turn = std::make_shared<std::atomic<uint32_t>>(1);
  KvStore::StagedOptions staged{.device_capacity_bytes = kDeviceBytes};
  staged.transfers.before_copy = [turn](TransferDirection) {
    const uint32_t x = turn->fetch_add(1) * 2654435761u;
    absl::SleepFor(absl::Microseconds((x >> 16) % 60));
  };
  return staged;
}

AttentionParams Params(AttentionPolicy policy) {
  AttentionParams params;
  params.policy = policy;
  params.token_budget = 50;
  params.sink_tokens = 4;
  params.local_window = 16;
  return params;
}

class StagedDecodeTest : public testing::TestWithParam<AttentionPolicy> {
 protected:
  void SetUp() override {
    direct_ = LoadTiny({});
    staged_ = LoadTiny({.staged = SlowDevice()});
    const absl::Status status = direct_->runner().CheckAttention(Params(GetParam()));
    if (!status.ok()) GTEST_SKIP() << "this model cannot run the policy: " << status;
  }
  void ExpectTheSame(const AttentionParams& params) {
    OffloadCounters counters;
    EXPECT_EQ(Converse(*staged_, params, /*chunk_tokens=*/16, &counters),
              Converse(*direct_, params));
    EXPECT_GT(counters.host_to_device_bytes, 0);
    EXPECT_EQ(counters.deferred, 0);
    EXPECT_LE(counters.hits, counters.lookups);
    // 171 tokens; the last block is not complete yet.
    const int64_t token_bytes = static_cast<int64_t>(staged_->kv_store().layout().token_bytes());
    EXPECT_EQ(counters.device_to_host_bytes, 160 * token_bytes);
  }

  std::unique_ptr<LoadedRunner> direct_, staged_;
};

TEST_P(StagedDecodeTest, GivesTheLogitsOfDirect) { ExpectTheSame(Params(GetParam())); }

TEST_P(StagedDecodeTest, GivesTheLogitsOfDirectBetweenScansAndAmongCandidates) {
  AttentionParams params = Params(GetParam());
  params.prediction_interval = 16;
  params.token_budget = 64;
  if (direct_->runner().CheckAttention(params).ok()) ExpectTheSame(params);
  params.prediction_interval = 4;
  params.candidates = 90;
  if (direct_->runner().CheckAttention(params).ok()) ExpectTheSame(params);
  params.candidates = 0;
  params.neighbours = 1;
  if (direct_->runner().CheckAttention(params).ok()) ExpectTheSame(params);
}

TEST_P(StagedDecodeTest, GivesTheLogitsOfDirectWithPartialScans) {
  AttentionParams params = Params(GetParam());
  params.scan_fraction = 0.25f;
  params.keys = KeyFormat::kBits1;
  params.prediction_interval = 4;
  if (direct_->runner().CheckAttention(params).ok()) ExpectTheSame(params);
}

TEST_P(StagedDecodeTest, ABudgetForAllTokensGivesTheDenseLogits) {
  AttentionParams params = Params(GetParam());
  params.token_budget = 200;
  const std::vector<float> direct = Converse(*direct_, params);
  EXPECT_EQ(Converse(*staged_, params), direct);
}

TEST_P(StagedDecodeTest, ForksGoOnAsTheyDoDirect) {
  const AttentionParams params = Params(GetParam());
  std::vector<float> logits[2];
  LoadedRunner* models[2] = {direct_.get(), staged_.get()};
  for (const int i : {0, 1}) {
    LoadedRunner& model = *models[i];
    BlockTable sequence = model.NewSequence(160, params);
    const std::unique_ptr<SequenceState> state = model.NewState(params);
    model.Prefill(sequence, TinyTokens(101, 1), 32, state.get());
    auto fork_state = model.runner().ForkState(*state);
    ASSERT_TRUE(fork_state.ok()) << fork_state.status();
    BlockTable fork = model.NewSequence(160, params);
    for (size_t b = 0; b < fork.blocks.size(); ++b) {
      model.runner().CopyBlock(sequence.blocks[b], fork.blocks[b]);
    }
    for (size_t b = 0; b < fork.state_blocks.size(); ++b) {
      model.runner().CopyBlock(sequence.state_blocks[b], fork.state_blocks[b]);
    }
    fork.num_tokens = sequence.num_tokens;
    logits[i] = model.Decode(sequence, TinyTokens(20, 2), state.get());
    const std::vector<float> of_fork = model.Decode(fork, TinyTokens(20, 3), fork_state->get());
    logits[i].insert(logits[i].end(), of_fork.begin(), of_fork.end());
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_P(StagedDecodeTest, DeferredMissesGiveTheSameLogitsHoweverSlowTransfersAre) {
  AttentionParams params = Params(GetParam());
  params.misses = MissRule::kDeferred;
  const absl::Status status = direct_->runner().CheckAttention(params);
  if (!status.ok()) GTEST_SKIP() << "this policy does without nothing: " << status;
  auto fast = LoadTiny({.staged = KvStore::StagedOptions{.device_capacity_bytes = kDeviceBytes}});
  OffloadCounters of_fast, of_slow;
  const std::vector<float> logits = Converse(*fast, params, /*chunk_tokens=*/16, &of_fast);
  EXPECT_EQ(Converse(*staged_, params, /*chunk_tokens=*/16, &of_slow), logits);
  EXPECT_EQ(of_fast.deferred, of_slow.deferred);
  EXPECT_EQ(of_fast.host_to_device_bytes, of_slow.host_to_device_bytes);
  for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
}

INSTANTIATE_TEST_SUITE_P(Policies, StagedDecodeTest,
                         testing::Values(AttentionPolicy::kTokenButler, AttentionPolicy::kSketch,
                                         AttentionPolicy::kPca, AttentionPolicy::kQuest,
                                         AttentionPolicy::kExact, AttentionPolicy::kSnapKv,
                                         AttentionPolicy::kH2o, AttentionPolicy::kStreamingLlm,
                                         AttentionPolicy::kXkv, AttentionPolicy::kRandom),
                         [](const auto& info) { return std::string(PolicyName(info.param)); });

// What a server with such a device tier does where nobody says otherwise.
TEST(StagedDefaultTest, LookaheadCandidatesTravelWhileTheLayerBeforeComputes) {
  auto direct = LoadTiny({});
  auto staged = LoadTiny({.staged = SlowDevice()});
  AttentionParams params = Params(AttentionPolicy::kSketch);
  params.query = DefaultStagedParams().query;
  params.candidates = 75;
  OffloadCounters counters;
  EXPECT_EQ(Converse(*staged, params, /*chunk_tokens=*/16, &counters), Converse(*direct, params));
  EXPECT_EQ(counters.hits, counters.lookups) << "the real query chooses among what was sent";

  // Every byte is listed with its layer and the moment it was sent.
  BlockTable sequence = staged->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = staged->NewState(params);
  staged->Prefill(sequence, TinyTokens(120, 1), 32, state.get());
  EXPECT_TRUE(state->transfers().empty());
  staged->Decode(sequence, TinyTokens(1, 2), state.get());  // fills sink and ring, too
  int64_t sent_ahead = 0;
  for (const int32_t token : TinyTokens(40, 3)) {
    const OffloadCounters before = state->stats().offload;
    staged->Decode(sequence, {token}, state.get());
    const OffloadCounters after = state->stats().offload;
    int64_t bytes = 0;
    for (const LayerTransfer& transfer : state->transfers()) {
      bytes += transfer.bytes;
      EXPECT_EQ(transfer.sent, transfer.layer == 0 ? LayerTransfer::Sent::kAtChoice
                                                   : LayerTransfer::Sent::kAfterAttention);
      EXPECT_EQ(transfer.during, std::max(0, transfer.layer - 1));
      if (transfer.layer > 0) sent_ahead += transfer.bytes;
    }
    EXPECT_EQ(bytes, after.host_to_device_bytes - before.host_to_device_bytes);
  }
  EXPECT_GT(sent_ahead, 0);
}

TEST(StagedDefaultTest, MissesAreListedWithTheLayerThatWaits) {
  auto staged = LoadTiny({.staged = KvStore::StagedOptions{.device_capacity_bytes = kDeviceBytes,
                                                           .selections_kept = 1}});
  const AttentionParams params = Params(AttentionPolicy::kSketch);
  BlockTable sequence = staged->NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = staged->NewState(params);
  staged->Prefill(sequence, TinyTokens(120, 1), 32, state.get());
  int64_t misses = 0;
  for (const int32_t token : TinyTokens(40, 3)) {
    staged->Decode(sequence, {token}, state.get());
    for (const LayerTransfer& transfer : state->transfers()) {
      misses += transfer.bytes;
      EXPECT_EQ(transfer.sent, LayerTransfer::Sent::kAtFetch);
      EXPECT_EQ(transfer.during, transfer.layer);
    }
  }
  const OffloadCounters counters = state->stats().offload;
  const int64_t row_bytes = 2 * static_cast<int64_t>(staged->kv_store().layout().row_bytes());
  EXPECT_EQ(misses, (counters.lookups - counters.hits) * row_bytes);
  EXPECT_GT(misses, 0);
}

// One step after another for all policies together, staged, against each alone, direct.
TEST(StagedBatchTest, MixedPoliciesGiveWhatEachGivesAlone) {
  const std::vector<AttentionPolicy> policies = {
      AttentionPolicy::kSketch, AttentionPolicy::kQuest, AttentionPolicy::kExact,
      AttentionPolicy::kDense,  AttentionPolicy::kH2o,   AttentionPolicy::kStreamingLlm};
  auto direct = LoadTiny({});
  auto staged = LoadTiny({.staged = SlowDevice()});
  std::vector<BlockTable> tables;
  std::vector<std::unique_ptr<SequenceState>> states;
  std::vector<std::vector<float>> alone;
  constexpr int kSteps = 24;
  for (size_t i = 0; i < policies.size(); ++i) {
    const AttentionParams params = Params(policies[i]);
    const std::vector<int32_t> prompt = TinyTokens(70 + static_cast<int>(i), 10 + i);
    BlockTable table = direct->NewSequence(120, params);
    const std::unique_ptr<SequenceState> state = direct->NewState(params);
    direct->Prefill(table, prompt, 32, state.get());
    alone.push_back(direct->Decode(table, TinyTokens(kSteps, 20 + i), state.get()));
    tables.push_back(staged->NewSequence(120, params));
    states.push_back(staged->NewState(params));
    staged->Prefill(tables.back(), prompt, 32, states.back().get());
  }
  const size_t vocab = static_cast<size_t>(staged->vocab_size());
  for (int step = 0; step < kSteps; ++step) {
    StepPlan plan;
    std::vector<std::vector<int32_t>> tokens;
    for (size_t i = 0; i < policies.size(); ++i) tokens.push_back(TinyTokens(kSteps, 20 + i));
    for (size_t i = 0; i < policies.size(); ++i) {
      plan.decode.push_back({.block_table = &tables[i],
                             .token_ids = absl::MakeConstSpan(&tokens[i][step], 1),
                             .start_position = tables[i].num_tokens,
                             .state = states[i].get()});
    }
    ASSERT_TRUE(staged->runner().Run(plan).ok());
    for (size_t i = 0; i < policies.size(); ++i) {
      ++tables[i].num_tokens;
      const absl::Span<const float> got = staged->runner().decode_logits(static_cast<int>(i));
      ASSERT_EQ(got, absl::MakeConstSpan(alone[i]).subspan(step * vocab, vocab))
          << PolicyName(policies[i]) << ", step " << step;
    }
  }
}

TEST(StagedDeviceTest, RefusesASequenceThatHasNoRoom) {
  const auto layout = LoadTiny({})->kv_store().layout();
  const int64_t two_blocks = 2 * static_cast<int64_t>(layout.block_bytes()) + 63;
  auto model = LoadTiny({.staged = KvStore::StagedOptions{.device_capacity_bytes = two_blocks}});
  const auto state = model->runner().NewState(Params(AttentionPolicy::kExact), /*max_tokens=*/500,
                                              /*num_forks=*/0);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kResourceExhausted) << state.status();
  EXPECT_EQ(model->runner().device_kv_used_bytes(), 0);
}

TEST(StagedDeviceTest, ShowsWhatSequencesHoldOfIt) {
  auto model = LoadTiny({.staged = KvStore::StagedOptions{.device_capacity_bytes = kDeviceBytes}});
  {
    const auto state = model->NewState(Params(AttentionPolicy::kExact));
    EXPECT_GT(model->runner().device_kv_used_bytes(), 0);
  }
  EXPECT_EQ(model->runner().device_kv_used_bytes(), 0);
}

}  // namespace
}  // namespace tokenbutler
