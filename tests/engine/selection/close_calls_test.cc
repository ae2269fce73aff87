#include "engine/selection/close_calls.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

TokenSelection Candidates(const std::vector<int32_t>& tokens, const std::vector<float>& scores) {
  TokenSelection candidates;
  candidates.Reset(1, static_cast<int>(tokens.size()));
  candidates.AddAll(0, tokens, scores);
  return candidates;
}

// What is chosen of the candidates when `better` gives their better scores.
template <typename Better>
std::vector<int32_t> Choose(const TokenSelection& candidates, int num_chosen, const Better& better,
                            std::vector<int32_t>* open = nullptr) {
  CloseCalls calls;
  calls.Reset(1, candidates.capacity);
  calls.Find(candidates, 0, num_chosen);
  const absl::Span<const int32_t> found = calls.open().tokens_of(0);
  if (open != nullptr) open->assign(found.begin(), found.end());
  for (size_t i = 0; i < found.size(); ++i) calls.open().scores[i] = better(found[i]);
  TokenSelection chosen;
  chosen.Reset(1, num_chosen + 1);
  chosen.Add(0, -1, 0);
  calls.AddChosen(candidates, 0, num_chosen, &chosen);
  const absl::Span<const int32_t> tokens = chosen.tokens_of(0);
  return {tokens.begin() + 1, tokens.end()};
}

TEST(CloseCallsTest, TheBestAreChosenUnseenAndTheNextCompete) {
  const TokenSelection candidates = Candidates({10, 20, 30, 40, 50}, {5, 1, 4, 2, 3});
  std::vector<int32_t> open;
  // Three places for five: one is sure, four compete.
  EXPECT_THAT(Choose(
                  candidates, 3, [](int32_t t) { return static_cast<float>(t); }, &open),
              ElementsAre(10, 40, 50));
  EXPECT_THAT(open, ElementsAre(20, 30, 40, 50));
  // Four for five: three are sure.
  EXPECT_THAT(Choose(
                  candidates, 4, [](int32_t t) { return static_cast<float>(-t); }, &open),
              ElementsAre(10, 20, 30, 50));
  EXPECT_THAT(open, ElementsAre(20, 40));
  // Two for five: none is.
  EXPECT_THAT(Choose(
                  candidates, 2, [](int32_t t) { return static_cast<float>(t); }, &open),
              ElementsAre(40, 50));
  EXPECT_EQ(open.size(), 5u);
}

TEST(CloseCallsTest, AllAreChosenWhereThereAreEnoughPlaces) {
  const TokenSelection candidates = Candidates({3, 5}, {1, 2});
  std::vector<int32_t> open;
  const auto any = [](int32_t) { return 0.0f; };
  EXPECT_THAT(Choose(candidates, 2, any, &open), ElementsAre(3, 5));
  EXPECT_THAT(open, IsEmpty());
  EXPECT_THAT(Choose(candidates, 9, any, &open), ElementsAre(3, 5));
  EXPECT_THAT(Choose(candidates, 0, any), IsEmpty());
  EXPECT_THAT(Choose(Candidates({}, {}), 3, any), IsEmpty());
}

TEST(CloseCallsTest, EqualsAndNumbersThatAreNoneTakeNoPlaceTwice) {
  const auto equal = [](int32_t) { return 7.0f; };
  EXPECT_THAT(Choose(Candidates({1, 2, 3, 4}, {2, 2, 2, 2}), 3, equal), ElementsAre(1, 2, 3));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Choose(Candidates({1, 2, 3, 4}, {nan, 2, nan, nan}), 3, equal).size(), 3u);
}

// Against a slow statement of the rule.
TEST(CloseCallsTest, AgreesWithSorting) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + static_cast<int>(random() % 60), m = static_cast<int>(random() % 70);
    std::vector<int32_t> tokens(n), order(n);
    std::vector<float> scores(n), better(n);
    for (int i = 0; i < n; ++i) {
      tokens[i] = i;
      scores[i] = static_cast<float>(random() % 1000000);
      better[i] = static_cast<float>(random() % 9);
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[a] > scores[b]; });
    const int num_sure = n <= m ? n : std::max(0, 2 * m - n);
    std::stable_sort(order.begin() + num_sure, order.end(), [&](int a, int b) {
      return better[a] != better[b] ? better[a] > better[b] : a < b;
    });
    order.resize(std::min(n, m));
    std::sort(order.begin(), order.end());
    EXPECT_THAT(Choose(Candidates(tokens, scores), m, [&](int32_t t) { return better[t]; }),
                ElementsAreArray(order));
  }
}

}  // namespace
}  // namespace tokenbutler
