#include "tools/eval/tasks/prose.h"

#include <cctype>
#include <set>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

TEST(ProseTest, SentencesAreWholeAndHaveNoNamesOrDigits) {
  SeededRandom random(3, "prose", 0);
  std::set<std::string> seen;
  for (int i = 0; i < 500; ++i) {
    const std::string sentence = ProseSentence(&random);
    seen.insert(sentence);
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(sentence[0]))) << sentence;
    EXPECT_EQ(sentence.back(), '.');
    for (size_t c = 1; c < sentence.size(); ++c) {
      const auto letter = static_cast<unsigned char>(sentence[c]);
      EXPECT_FALSE(std::isupper(letter) || std::isdigit(letter) || letter == '<') << sentence;
    }
    for (const char* wrong : {" a a", " a e", " a i", " a o", " a u", "  "}) {
      EXPECT_EQ(sentence.find(wrong), std::string::npos) << sentence;
    }
  }
  EXPECT_GT(seen.size(), 480);
}

TEST(ProseTest, GeneratedProseIsTheSeeds) {
  const Prose prose = GeneratedProse(1, 1000);
  EXPECT_EQ(prose.source, "generated");
  EXPECT_GE(prose.words.size(), 1000);
  EXPECT_EQ(prose.words, GeneratedProse(1, 1000).words);
  EXPECT_NE(prose.words, GeneratedProse(2, 1000).words);
}

TEST(ProseTest, TextsAreCutIntoSentences) {
  const TemporaryFolder folder;
  const std::string one = folder.Write("one.txt", "He asked:  \"Why?\"\n(Nobody knew.)");
  const std::string two = folder.Write("two.txt", "It was 3.5 miles! Then");
  const auto prose = ReadProse({one, two});
  ASSERT_TRUE(prose.ok()) << prose.status();
  EXPECT_EQ(prose->source, "one.txt, two.txt");
  EXPECT_THAT(Sentences(*prose, 10),
              ElementsAre("He asked: \"Why?\"", "(Nobody knew.)", "It was 3.5 miles!", "Then"));
  // Cut off in a sentence; begun again.
  EXPECT_THAT(Sentences(*prose, 2), ElementsAre("He asked:"));
  EXPECT_EQ(Sentences(*prose, 13).back(), "Then He asked: \"Why?\"");
}

TEST(ProseTest, WithoutWordsThereIsAnError) {
  const TemporaryFolder folder;
  EXPECT_EQ(ReadProse({folder.Write("empty", " \n")}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadProse({folder.path() / "missing"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tokenbutler
