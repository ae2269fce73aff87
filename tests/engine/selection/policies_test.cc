#include "engine/selection/policies.h"

#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

class PoliciesTest : public ::testing::TestWithParam<AttentionPolicy> {};

INSTANTIATE_TEST_SUITE_P(Policies, PoliciesTest,
                         ::testing::Values(AttentionPolicy::kSketch, AttentionPolicy::kPca,
                                           AttentionPolicy::kQuest, AttentionPolicy::kExact,
                                           AttentionPolicy::kSnapKv, AttentionPolicy::kH2o,
                                           AttentionPolicy::kStreamingLlm, AttentionPolicy::kXkv,
                                           AttentionPolicy::kRandom),
                         [](const auto& info) { return std::string(PolicyName(info.param)); });

// A request that is shorter than its budget must not be refused for a budget that nobody asked for.
TEST_P(PoliciesTest, WhatIsTakenIsTakenForShortSequencesToo) {
  AttentionParams params = DefaultParams(GetParam());
  const FakeSequence sequence({}, params, 64);
  const SelectionResources& resources = sequence.resources();
  int num_taken = 0;
  for (const int sink : {0, 1, 15, 17, 128}) {
    for (const int window : {1, 16, 33, 512}) {
      for (const int budget : {48, 200, 656, 673, 4096}) {
        for (const int interval : {1, 16}) {
          params.sink_tokens = sink;
          params.local_window = window;
          params.token_budget = budget;
          params.prediction_interval = interval;
          if (!CheckPolicy(params, resources).ok()) continue;
          ++num_taken;
          for (const int tokens : {1, 2, 16, 17, 300, 641, 100000}) {
            const AttentionParams fitted =
                FittedParams(params, tokens, resources.layout.block_size);
            EXPECT_TRUE(CheckPolicy(fitted, resources).ok())
                << CheckPolicy(fitted, resources) << " for " << tokens << " tokens, sink " << sink
                << ", window " << window << ", budget " << budget;
            EXPECT_LE(fitted.token_budget, budget);
            EXPECT_GE(fitted.token_budget, std::min(tokens, budget));
          }
        }
      }
    }
  }
  EXPECT_GT(num_taken, 20);
}

}  // namespace
}  // namespace tokenbutler
