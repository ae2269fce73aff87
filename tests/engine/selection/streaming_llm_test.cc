#include "engine/selection/streaming_llm.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"

namespace tokenbutler {
namespace {

AttentionParams Params(int token_budget) {
  AttentionParams params = DefaultParams(AttentionPolicy::kStreamingLlm);
  params.token_budget = token_budget;
  return params;
}

TEST(StreamingLlmTest, KeepsFirstAndLastTokens) {
  for (const int sinks : {4, 0, 9}) {
    for (const int chunk : {1, 7, 64, 1000}) {
      AttentionParams params = Params(20);
      params.sink_tokens = sinks;
      FakeSequence sequence({.group_size = 7}, params, 100);
      const auto selector = sequence.NewSelector();
      ASSERT_NE(selector, nullptr);
      sequence.Prefill(selector.get(), 17, chunk);
      for (int step = 0; step < 40; ++step) {
        const auto selections = sequence.Decode(selector.get());
        const int n = sequence.length();
        if (n <= 20) {
          EXPECT_EQ(selections[0].num_kv_heads, 0);
          EXPECT_EQ(selector->SinkShift(sequence.Context(0, n)), 0);
          continue;
        }
        std::vector<int> expected(20);
        std::iota(expected.begin(), expected.begin() + sinks, 0);
        std::iota(expected.begin() + sinks, expected.end(), n - 20 + sinks);
        for (const std::vector<int>& tokens : TokensOf(selections)) EXPECT_EQ(tokens, expected);
        ExpectWellFormed(selections[1], 2, n, 20);
        // In the cache the query is the 20th token.
        EXPECT_EQ(n - 1 - selector->SinkShift(sequence.Context(0, n)), 19);
      }
    }
  }
}

TEST(StreamingLlmTest, ForksGoOnIndependently) {
  FakeSequence sequence({}, Params(16), 100);
  const auto selector = sequence.NewSelector();
  sequence.Prefill(selector.get(), 30);
  const auto clone = selector->Clone();
  const auto fork = sequence.Fork(2);
  sequence.Decode(selector.get());
  sequence.Decode(selector.get());
  EXPECT_EQ(fork->Decode(clone.get())[0].tokens_of(0).back(), 30);
  EXPECT_EQ(sequence.Decode(selector.get())[0].tokens_of(0).back(), 32);
}

}  // namespace
}  // namespace tokenbutler
