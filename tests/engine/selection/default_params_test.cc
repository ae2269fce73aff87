#include "engine/selection/attention_params.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(DefaultParamsTest, AreValidForEveryPolicy) {
  for (const char* name : {"dense", "tokenbutler", "sketch", "pca", "quest", "exact", "snapkv",
                           "h2o", "streaming_llm", "xkv", "random"}) {
    SCOPED_TRACE(name);
    const AttentionParams params = DefaultParams(*ParsePolicy(name));
    EXPECT_EQ(PolicyName(params.policy), name);
    EXPECT_TRUE(params.Validate().ok()) << params.Validate();
  }
}

TEST(DefaultParamsTest, SinkAndWindowAreThoseOfThePublications) {
  EXPECT_EQ(DefaultParams(AttentionPolicy::kStreamingLlm).sink_tokens, 4);
  EXPECT_EQ(DefaultParams(AttentionPolicy::kSnapKv).local_window, 32);
  EXPECT_EQ(DefaultParams(AttentionPolicy::kSketch).sink_tokens, AttentionParams().sink_tokens);
  EXPECT_EQ(DefaultParams(AttentionPolicy::kSketch).local_window, AttentionParams().local_window);
}

// Rules without sink and window leave the whole budget to small requests.
TEST(DefaultParamsTest, UnusedOptionsForbidNothing) {
  for (const AttentionPolicy policy :
       {AttentionPolicy::kQuest, AttentionPolicy::kH2o, AttentionPolicy::kXkv}) {
    AttentionParams params = DefaultParams(policy);
    params.token_budget = 64;
    EXPECT_TRUE(params.Validate().ok()) << params.Validate();
  }
}

}  // namespace
}  // namespace tokenbutler
