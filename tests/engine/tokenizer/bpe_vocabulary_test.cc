#include "engine/tokenizer/bpe_vocabulary.h"

#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

int RankOf(const MergeTable& table, int32_t left, int32_t right) {
  const MergeTable::Merge* merge = table.Find(left, right);
  return merge == nullptr ? -1 : merge->rank;
}

TEST(ScoredMergesTest, EveryCutOfATokenIsAMergeWithTheRankOfItsScore) {
  TokenizerSpec spec;
  spec.tokens = {"a", "b", "ab", "aba", "ba"};
  spec.scores = {0, 0, -2, -1, -3};
  const MergeTable table = BuildScoredMerges(spec, IndexTokens(spec));
  // "aba" has the best score, and of its cuts the one with the longer left part comes first.
  EXPECT_EQ(RankOf(table, 2, 0), 0);  // ab a
  EXPECT_EQ(RankOf(table, 0, 4), 1);  // a ba
  EXPECT_EQ(RankOf(table, 0, 1), 2);  // a b
  EXPECT_EQ(RankOf(table, 1, 0), 3);  // b a
  EXPECT_EQ(RankOf(table, 0, 0), -1);
}

TEST(ScoredMergesTest, LengthsAreInCodePoints) {
  TokenizerSpec spec;
  spec.tokens = {"é", "a", "éa", "aa", "éaa"};
  spec.scores = {0, 0, -1, -1, -1};
  const MergeTable table = BuildScoredMerges(spec, IndexTokens(spec));
  EXPECT_EQ(RankOf(table, 2, 1), 0);  // éa a: two code points and one
  EXPECT_EQ(RankOf(table, 0, 3), 1);  // é aa
  EXPECT_EQ(RankOf(table, 0, 1), 2);  // é a and a a are equal: by the vocabulary's order
  EXPECT_EQ(RankOf(table, 1, 1), 3);
}

TEST(ScoredMergesTest, OfEqualTokensTheLastCounts) {
  TokenizerSpec spec;
  spec.tokens = {"a", "b", "ab", "ab"};
  spec.scores = {0, 0, -1, -2};
  const MergeTable table = BuildScoredMerges(spec, IndexTokens(spec));
  ASSERT_NE(table.Find(0, 1), nullptr);
  EXPECT_EQ(table.Find(0, 1)->merged_id, 3);
}

}  // namespace
}  // namespace tokenbutler
