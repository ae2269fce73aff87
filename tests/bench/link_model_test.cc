#include "bench/link_model.h"

#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using Sent = LayerTransfer::Sent;

// 4 layers x 2 KV heads x 1000 tokens of 256 bytes: 2.048 MB are attended to. A layer takes 0.5 ms,
// 0.1 of them until it has chosen.
constexpr LinkModel kModel{.gbps = 10,
                           .latency_us = 5,
                           .step_ms = 2,
                           .before_attention = 0.2,
                           .num_layers = 4,
                           .num_kv_heads = 2,
                           .head_dim = 64,
                           .element_bytes = 2,
                           .token_budget = 1000};

// Two layers were run, and attended to 5,000 tokens of 100 bytes each: 0.5 MB where the larger
// model's layers attend to 0.512.
LinkModel::Step StepOf(const std::vector<StepTransfers>& steps, bool defers = false,
                       const LinkModel& model = kModel) {
  return model.StepOf({.steps = steps,
                       .num_layers = 2,
                       .token_bytes = 100,
                       .lookups = 10000 * static_cast<int64_t>(steps.size()),
                       .defers = defers});
}

// A tenth of the layer's tokens: 0.0512 MB there, 0.00512 ms on its link.
constexpr int64_t kTenth = 50000;
constexpr double kMs = 0.00512;
constexpr double kLatency = 0.005;
// A layer that was run stands for two.
constexpr double kLayers = 2;

TEST(LinkModelTest, TheSameShareTravelsInEveryLayer) {
  const LinkModel::Step step = StepOf(
      {{{.layer = 0, .during = 0, .bytes = kTenth}, {.layer = 1, .during = 1, .bytes = kTenth}}});
  EXPECT_NEAR(step.mb, 0.2048, 1e-12);
  EXPECT_NEAR(step.link_ms, 0.02048, 1e-12);
  EXPECT_NEAR(step.stall_ms, kLayers * 2 * (kMs + kLatency), 1e-12);
}

TEST(LinkModelTest, StepsAreAveraged) {
  const StepTransfers misses = {{.layer = 0, .during = 0, .bytes = kTenth}};
  const LinkModel::Step one = StepOf({misses});
  const LinkModel::Step half = StepOf({misses, {}, misses, {}});
  EXPECT_NEAR(half.mb, one.mb / 2, 1e-12);
  EXPECT_NEAR(half.stall_ms, one.stall_ms / 2, 1e-12);
}

TEST(LinkModelTest, WhatIsSentAfterTheLayerBeforeHasItsTimeToTravel) {
  // 0.4 ms of MLP and 0.1 of the next layer until it has chosen.
  const auto stall = [](Sent sent, int during, int64_t bytes) {
    return StepOf({{{.layer = 1, .during = during, .sent = sent, .bytes = bytes}}}).stall_ms;
  };
  EXPECT_EQ(stall(Sent::kAfterAttention, 0, kTenth), 0);
  EXPECT_EQ(stall(Sent::kAfterAttention, 0, 96 * kTenth), 0);
  EXPECT_NEAR(stall(Sent::kAfterAttention, 0, 100 * kTenth), kLayers * (100 * kMs + kLatency - 0.5),
              1e-9);
  EXPECT_EQ(stall(Sent::kAtInput, 0, 110 * kTenth), 0) << "0.1 ms more";
  EXPECT_NEAR(stall(Sent::kAtInput, 1, 30 * kTenth), kLayers * (30 * kMs + kLatency - 0.1), 1e-9);
  EXPECT_NEAR(stall(Sent::kAtChoice, 1, kTenth), kLayers * (kMs + kLatency), 1e-12);
}

TEST(LinkModelTest, TheLinkCarriesOneTransferAfterTheOther) {
  // The miss of layer 0 waits behind what was sent for layer 1.
  const LinkModel::Step step =
      StepOf({{{.layer = 1, .during = 0, .sent = Sent::kAtInput, .bytes = 50 * kTenth},
               {.layer = 0, .during = 0, .sent = Sent::kAtFetch, .bytes = kTenth}}});
  EXPECT_NEAR(step.stall_ms, kLayers * (51 * kMs + kLatency - 0.1), 1e-9);
}

TEST(LinkModelTest, DeferredMissesAreWaitedForAtTheNextStep) {
  const StepTransfers misses = {{.layer = 0, .during = 0, .bytes = kTenth}};
  EXPECT_EQ(StepOf({misses, misses}, /*defers=*/true).stall_ms, 0);
  EXPECT_GT(StepOf({misses, misses}, /*defers=*/false).stall_ms, 0);
  // 5.12 ms for each step of 1 ms (two layers): the second waits for what the first sent.
  const StepTransfers many = {{.layer = 0, .during = 0, .bytes = 1000 * kTenth}};
  EXPECT_NEAR(StepOf({many, many}, true).stall_ms, kLayers * (1000 * kMs + kLatency - 1) / 2, 1e-9);
  // Candidates that a layer has just found are not put off.
  const StepTransfers found = {{.layer = 0, .during = 0, .sent = Sent::kAtChoice, .bytes = kTenth}};
  EXPECT_NEAR(StepOf({found}, true).stall_ms, kLayers * (kMs + kLatency), 1e-12);
}

TEST(LinkModelTest, NothingTravelsWithoutLookups) {
  EXPECT_EQ(kModel.StepOf({}).mb, 0);
  EXPECT_EQ(StepOf({{}}).mb, 0);
  EXPECT_EQ(StepOf({{}}).stall_ms, 0);
}

TEST(LinkModelTest, TheDeviceTierKeepsItsProportions) {
  const ResidentOptions options = {.token_budget = 500,
                                   .candidates = 750,
                                   .sink_tokens = 16,
                                   .local_window = 64,
                                   .selections_kept = 3};
  const KvLayout layout = {.num_layers = 4, .num_kv_heads = 2, .head_dim = 64};
  EXPECT_EQ(kModel.DeviceBytes(options), StagedBytes(layout, {.token_budget = 1000,
                                                              .candidates = 1500,
                                                              .sink_tokens = 32,
                                                              .local_window = 128,
                                                              .selections_kept = 3}));
  EXPECT_GE(kModel.DeviceBytes(options), 3 * 1500 * int64_t{4 * 2 * 256});
}

}  // namespace
}  // namespace tokenbutler
