#include "tools/eval/tasks/word_pools.h"

#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

TEST(WordPoolsTest, BuiltInWordsAreLowerCaseAndNoneStandsTwice) {
  std::set<std::string> seen;
  for (const auto* pool :
       {&BuiltInWords().adjectives, &BuiltInWords().nouns, &BuiltInWords().verbs}) {
    EXPECT_GT(pool->size(), 400);
    for (const std::string& word : *pool) {
      EXPECT_TRUE(seen.insert(word).second) << word;
      EXPECT_TRUE(std::all_of(word.begin(), word.end(), [](char c) {
        return c >= 'a' && c <= 'z';
      })) << word;
    }
  }
}

TEST(WordPoolsTest, CompoundsComeWhenTheWordsAreUsedUp) {
  SeededRandom random(1, "words", 0);
  const WordPools few = {.adjectives = {"red"}, .nouns = {"stone", "river"}, .verbs = {"go"}};
  std::vector<std::string> words = DistinctWords(few, 12, &random);
  EXPECT_EQ(words.size(), 12);
  EXPECT_EQ(std::set<std::string>(words.begin(), words.end()).size(), 12);
  EXPECT_THAT(words, ::testing::IsSupersetOf({"red", "stone", "river", "go"}));
}

TEST(WordPoolsTest, ListsAreReadFromAFolder) {
  const TemporaryFolder folder;
  EXPECT_EQ(ReadWordPools(folder.path()).status().code(), absl::StatusCode::kNotFound);
  folder.Write("adjectivelist.txt", "red\r\nblue\n\n");
  folder.Write("nounlist.txt", "stone\n");
  folder.Write("verblist.txt", "");
  EXPECT_THAT(std::string(ReadWordPools(folder.path()).status().message()),
              ::testing::HasSubstr("verblist.txt has no words"));
  folder.Write("verblist.txt", "go");
  const auto pools = ReadWordPools(folder.path());
  ASSERT_TRUE(pools.ok()) << pools.status();
  EXPECT_THAT(pools->adjectives, ::testing::ElementsAre("red", "blue"));
  EXPECT_THAT(pools->verbs, ::testing::ElementsAre("go"));
}

}  // namespace
}  // namespace tokenbutler
