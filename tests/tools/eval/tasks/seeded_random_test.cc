#include "tools/eval/tasks/seeded_random.h"

#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(SeededRandomTest, DependsOnSeedPurposeAndIndexOnly) {
  const auto first = [](uint64_t seed, const char* purpose, uint64_t index) {
    return SeededRandom(seed, purpose, index).Next();
  };
  EXPECT_EQ(first(1, "vt", 2), first(1, "vt", 2));
  const std::set<uint64_t> all = {first(1, "vt", 2), first(2, "vt", 2), first(1, "cwe", 2),
                                  first(1, "vt", 3), first(1, "vt", uint64_t{2} << 32)};
  EXPECT_EQ(all.size(), 5);
  // Samples of published results must stay what they are.
  EXPECT_EQ(first(1, "vt", 2), 11594854923167652428u);
}

TEST(SeededRandomTest, BelowReachesEveryNumberAboutEquallyOften) {
  SeededRandom random(7, "below", 0);
  std::vector<int> counts(5);
  for (int i = 0; i < 5000; ++i) ++counts[random.Below(5)];
  EXPECT_THAT(counts, ::testing::Each(::testing::AllOf(::testing::Ge(900), ::testing::Le(1100))));
}

TEST(SeededRandomTest, BetweenIncludesBothEnds) {
  SeededRandom random(7, "between", 0);
  std::set<int> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random.Between(3, 5));
  EXPECT_THAT(seen, ::testing::ElementsAre(3, 4, 5));
}

TEST(SeededRandomTest, DistinctNumbersAndShuffledListsLoseNothing) {
  SeededRandom random(7, "distinct", 0);
  std::vector<int> some = random.Distinct(10, 10);
  EXPECT_FALSE(std::is_sorted(some.begin(), some.end()));
  EXPECT_THAT(some, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(random.Distinct(3, 1000).size(), 3);
  random.Shuffle(&some);
  EXPECT_THAT(some, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

}  // namespace
}  // namespace tokenbutler
