#include "bench/link_model.h"

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// 4 layers x 2 KV heads x 1000 tokens of 256 bytes: 2.048 MB are attended to.
constexpr LinkModel kModel{.gbps = 10,
                           .latency_us = 5,
                           .step_ms = 2,
                           .num_layers = 4,
                           .num_kv_heads = 2,
                           .head_dim = 64,
                           .element_bytes = 2,
                           .token_budget = 1000};

// A model that was run, with rows of 100 bytes, of which 500 of 10,000 travelled.
OffloadCounters Counters(int64_t prefetched_bytes) {
  OffloadCounters counters;
  counters.lookups = 10000;
  counters.hits = 9500;
  counters.host_to_device_bytes = 50000;
  counters.prefetched_bytes = prefetched_bytes;
  return counters;
}

TEST(LinkModelTest, TheSameShareTravels) {
  const LinkModel::Step step = kModel.StepOf(Counters(0), 100, false);
  EXPECT_NEAR(step.mb, 0.05 * 2.048, 1e-12);
  EXPECT_NEAR(step.link_ms, 0.01024, 1e-12);
  EXPECT_NEAR(step.stall_ms, 0.01024 + 4 * 0.005, 1e-12);
}

TEST(LinkModelTest, WhatIsSentAheadOrDeferredStallsOnlyAFullLink) {
  const LinkModel::Step half_ahead = kModel.StepOf(Counters(25000), 100, false);
  EXPECT_NEAR(half_ahead.mb, 0.05 * 2.048, 1e-12);
  EXPECT_NEAR(half_ahead.stall_ms, 0.01024 / 2 + 0.02, 1e-12);
  EXPECT_EQ(kModel.StepOf(Counters(50000), 100, false).stall_ms, 0);
  EXPECT_EQ(kModel.StepOf(Counters(0), 100, true).stall_ms, 0);
  LinkModel slow = kModel;
  slow.gbps = 0.01;  // 10.24 ms for a step of 2
  EXPECT_NEAR(slow.StepOf(Counters(0), 100, true).stall_ms, 8.24, 1e-9);
}

TEST(LinkModelTest, NothingTravelsWithoutLookups) {
  EXPECT_EQ(kModel.StepOf({}, 100, false).mb, 0);
  EXPECT_EQ(kModel.StepOf({}, 100, false).stall_ms, 0);
}

}  // namespace
}  // namespace tokenbutler
