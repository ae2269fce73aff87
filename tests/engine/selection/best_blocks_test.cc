#include "engine/selection/best_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

constexpr int kBlock = 16;

TokenSelection Found(const std::vector<std::vector<std::pair<int, float>>>& heads) {
  TokenSelection found;
  found.Reset(static_cast<int>(heads.size()), 100);
  for (size_t h = 0; h < heads.size(); ++h) {
    for (const auto& [token, score] : heads[h]) found.Add(static_cast<int>(h), token, score);
  }
  return found;
}

std::vector<int32_t> Of(const BestBlocks& best, int kv_head) {
  return {best.of(kv_head).begin(), best.of(kv_head).end()};
}

class BestBlocksTest : public testing::Test {
 protected:
  void Rank(const TokenSelection& found, int block_size, float fraction, int begin, int end,
            int count) {
    best.Rank(found, block_size, fraction, begin, end, count, &masses_, pool_);
  }

  BestBlocks best;

 private:
  ComputePool pool_{2};
  BestBlocks::Masses masses_;
};

TEST_F(BestBlocksTest, KeepsTheBlocksWithMostMassOfEachHead) {
  EXPECT_FALSE(best.has_ranking());
  // Head 0: one token of e^3 in block 7 outweighs ten of e^0 in block 2, these three of e^1 in
  // block 4. Head 1: the scores' level does not matter, however high or low.
  std::vector<std::pair<int, float>> of_first;
  for (int i = 0; i < 10; ++i) of_first.emplace_back(32 + i, 0.0f);
  for (int i = 0; i < 3; ++i) of_first.emplace_back(64 + i, 1.0f);
  of_first.emplace_back(115, 3.0f);
  Rank(Found({of_first, {{20, -5000}, {40, -5001}, {150, -5000.5f}}}), kBlock,
       /*fraction=*/0.15f, /*begin=*/16, /*end=*/176, /*count=*/0);
  EXPECT_TRUE(best.has_ranking());
  EXPECT_THAT(Of(best, 0), ElementsAre(2, 7));
  EXPECT_THAT(Of(best, 1), ElementsAre(1, 9));
}

TEST_F(BestBlocksTest, KeepsEnoughForTheTokensWanted) {
  const TokenSelection found = Found({{{40, 1.0f}}});
  Rank(found, kBlock, 0.01f, 0, 160, 33);
  EXPECT_EQ(Of(best, 0).size(), 3 + 2);
  Rank(found, kBlock, 0.01f, 0, 160, 1000);
  EXPECT_EQ(Of(best, 0).size(), 10);
  Rank(found, kBlock, 0.35f, 0, 160, 1);
  EXPECT_EQ(Of(best, 0).size(), 4);
}

// What was not a whole block of the range when blocks were ranked is in every list from then on.
TEST_F(BestBlocksTest, LaterBlocksAreAdded) {
  Rank(Found({{{5, 1.0f}, {97, 9.0f}}, {{70, 0.0f}}}), kBlock, 0.01f, 3, 100, 0);
  EXPECT_THAT(Of(best, 0), ElementsAre(0, 1));
  EXPECT_THAT(Of(best, 1), ElementsAre(0, 4));
  best.AddUpTo(7);
  EXPECT_THAT(Of(best, 0), ElementsAre(0, 1, 6));
  best.AddUpTo(7);
  best.AddUpTo(9);
  EXPECT_THAT(Of(best, 0), ElementsAre(0, 1, 6, 7, 8));
  EXPECT_THAT(Of(best, 1), ElementsAre(0, 4, 6, 7, 8));
}

TEST_F(BestBlocksTest, ARangeWithoutAWholeBlockKnowsNone) {
  Rank(Found({{{5, 1.0f}}}), kBlock, 0.5f, 3, 10, 2);
  EXPECT_THAT(Of(best, 0), ElementsAre());
  best.AddUpTo(2);
  EXPECT_THAT(Of(best, 0), ElementsAre(0, 1));
}

// As many tokens as leave a remainder of what goes at once, and blocks of any size.
TEST_F(BestBlocksTest, MassIsSummedOverAllTokens) {
  for (const int block_size : {96, 128}) {
    for (const int num_tokens : {1, 15, 16, 17, 33, 90}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, blocks of " << block_size);
      // Many of block 3, and one each of two others that outweighs them, and does not quite.
      std::vector<std::pair<int, float>> tokens;
      for (int i = 0; i < num_tokens; ++i) tokens.emplace_back(3 * block_size + i, 0.0f);
      const auto weight = static_cast<float>(num_tokens);
      tokens.emplace_back(5 * block_size, std::log(weight + 0.5f));
      tokens.emplace_back(7 * block_size, std::log(weight - 0.5f));
      Rank(Found({tokens}), block_size, 0.01f, 0, 10 * block_size, 0);
      EXPECT_THAT(Of(best, 0), ElementsAre(3, 5));
    }
  }
}

// Scores of nothing but NaN or infinities still give a valid list.
TEST_F(BestBlocksTest, ScoresWithoutMeaning) {
  for (const float score :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Rank(Found({{{5, score}, {60, score}}}), kBlock, 0.5f, 0, 64, 1);
    EXPECT_EQ(Of(best, 0).size(), 3);
  }
}

}  // namespace
}  // namespace tokenbutler
