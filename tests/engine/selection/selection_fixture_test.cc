#include "tests/engine/selection/selection_fixture.h"

#include <cmath>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

AttentionParams ExactParams() {
  AttentionParams params = DefaultParams(AttentionPolicy::kExact);
  params.sink_tokens = 2;
  params.local_window = 4;
  params.token_budget = 40;
  return params;
}

TEST(SelectionFixtureTest, RowsDoNotDependOnTheDivisionIntoSteps) {
  FakeSequence whole({}, ExactParams(), 100), pieces({}, ExactParams(), 100);
  whole.Prefill(nullptr, 70);
  pieces.Prefill(nullptr, 60, 7);
  for (int i = 0; i < 10; ++i) pieces.Decode(nullptr);
  ASSERT_EQ(whole.length(), pieces.length());
  for (int t = 0; t < 70; ++t) {
    EXPECT_EQ(whole.Key(1, 1, t), pieces.Key(1, 1, t));
    EXPECT_EQ(whole.Value(0, 1, t), pieces.Value(0, 1, t));
    EXPECT_EQ(whole.Query(1, t)[5], pieces.Query(1, t)[5]);
  }
  EXPECT_TRUE(std::isnan(whole.Key(0, 0, 70)[0])) << "a row that is not written yet";
}

TEST(SelectionFixtureTest, ForksShareTheirPastOnly) {
  FakeSequence sequence({}, ExactParams(), 100);
  sequence.Prefill(nullptr, 40);
  const std::unique_ptr<FakeSequence> fork = sequence.Fork(2);
  sequence.Decode(nullptr);
  fork->Decode(nullptr);
  EXPECT_EQ(sequence.Key(1, 0, 39), fork->Key(1, 0, 39));
  EXPECT_NE(sequence.Key(1, 0, 40), fork->Key(1, 0, 40));
}

TEST(SelectionFixtureTest, LeadsASelectorThroughTheEnginesCalls) {
  FakeSequence sequence({}, ExactParams(), 100);
  const std::unique_ptr<TokenSelector> selector = sequence.NewSelector();
  ASSERT_NE(selector, nullptr);
  sequence.Prefill(selector.get(), 39, 8);
  EXPECT_EQ(sequence.Decode(selector.get())[0].num_kv_heads, 0) << "the budget holds all";
  for (int i = 0; i < 5; ++i) {
    for (const TokenSelection& selection : sequence.Decode(selector.get())) {
      ExpectWellFormed(selection, 2, sequence.length(), 40);
    }
  }
}

}  // namespace
}  // namespace tokenbutler
