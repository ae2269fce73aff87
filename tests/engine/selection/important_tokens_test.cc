#include "engine/selection/important_tokens.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Choose(const AttentionParams& params, std::vector<int32_t> tokens,
                            std::vector<float> scores, int count, int begin = 0, int end = 1000) {
  ImportantTokens important;
  const ImportantTokens::Choice chosen =
      important.Choose(params, tokens, scores, count, begin, end);
  EXPECT_EQ(chosen.scores.size(), chosen.tokens.size());
  return {chosen.tokens.begin(), chosen.tokens.end()};
}

TEST(ImportantTokensTest, TakesTheHighestScoresInTokenOrder) {
  EXPECT_THAT(Choose({}, {3, 5, 8, 9}, {1, 4, 2, 3}, 2), ElementsAre(5, 9));
  EXPECT_THAT(Choose({}, {3, 5, 8, 9}, {1, 4, 2, 3}, 9), ElementsAre(3, 5, 8, 9));
  EXPECT_THAT(Choose({}, {3, 5, 8, 9}, {1, 4, 2, 3}, 0), IsEmpty());
  EXPECT_THAT(Choose({}, {3, 5, 8, 9}, {1, 4, 2, 3}, -5), IsEmpty());
  EXPECT_THAT(Choose({}, {}, {}, 3), IsEmpty());
}

TEST(ImportantTokensTest, OfEqualScoresTheLowerTokenComesFirst) {
  EXPECT_THAT(Choose({}, {3, 5, 8, 9}, {2, 2, 2, 2}, 3), ElementsAre(3, 5, 8));
}

TEST(ImportantTokensTest, NeighboursCountAndComeOnce) {
  AttentionParams params;
  params.neighbours = 1;
  // 20 brings 19 and 21; 21 is there already when its own turn comes, and brings 22.
  EXPECT_THAT(Choose(params, {5, 20, 21}, {1, 9, 8}, 4), ElementsAre(19, 20, 21, 22));
  EXPECT_THAT(Choose(params, {5, 20, 21}, {1, 9, 8}, 7), ElementsAre(4, 5, 6, 19, 20, 21, 22));
}

TEST(ImportantTokensTest, NeighboursStayInsideTheRange) {
  AttentionParams params;
  params.neighbours = 2;
  EXPECT_THAT(Choose(params, {10, 19}, {1, 2}, 10, 10, 20), ElementsAre(10, 11, 12, 17, 18, 19));
}

TEST(ImportantTokensTest, TopPStopsAtTheShareOfTheMass) {
  AttentionParams params;
  params.top_p = 0.9f;
  // Masses 0.643, 0.237, 0.087, 0.032 of the four.
  EXPECT_THAT(Choose(params, {1, 2, 3, 4}, {4, 3, 2, 1}, 4), ElementsAre(1, 2, 3));
  params.top_p = 0.5f;
  EXPECT_THAT(Choose(params, {1, 2, 3, 4}, {4, 3, 2, 1}, 4), ElementsAre(1));
  params.top_p = 1e-6f;
  EXPECT_THAT(Choose(params, {1, 2, 3, 4}, {1, 1, 9, 1}, 4), ElementsAre(3));
}

TEST(ImportantTokensTest, AgreesWithASlowVersion) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    AttentionParams params;
    params.neighbours = static_cast<int>(random() % 4);
    const int end = 1 + static_cast<int>(random() % 80);
    std::vector<int32_t> tokens;
    std::vector<float> scores;
    for (int t = 0; t < end; ++t) {
      if (random() % 3 == 0) continue;
      tokens.push_back(t);
      scores.push_back(static_cast<float>(random() % 12));
    }
    const int count = static_cast<int>(random() % 40);
    std::vector<int> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[a] > scores[b]; });
    order.resize(std::min<size_t>(order.size(), static_cast<size_t>(count)));
    std::set<int32_t> expected;
    for (const int i : order) {
      for (int distance = 0; distance <= params.neighbours; ++distance) {
        for (const int t : {tokens[i] - distance, tokens[i] + distance}) {
          if (t >= 0 && t < end && static_cast<int>(expected.size()) < count) expected.insert(t);
        }
      }
    }
    EXPECT_EQ(Choose(params, tokens, scores, count, 0, end),
              std::vector<int32_t>(expected.begin(), expected.end()));
  }
}

}  // namespace
}  // namespace tokenbutler
