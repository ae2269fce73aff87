#include "tools/eval/tasks/ruler.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class RulerTest : public ::testing::Test {
 protected:
  RulerTest() {
    sources_.words = BuiltInWords();
    sources_.prose = GeneratedProse(1, 3000);
  }

  absl::StatusOr<TaskSample> TryMake(const std::string& task, int context_len, int index = 0,
                                     uint64_t seed = 1) {
    TaskSample sample;
    sample.task = task;
    sample.context_len = context_len;
    sample.index = index;
    sample.seed = seed;
    return MakeRulerSample(sample, sources_, format_);
  }
  TaskSample Make(const std::string& task, int context_len, int index = 0, uint64_t seed = 1) {
    auto sample = TryMake(task, context_len, index, seed);
    if (!sample.ok()) throw std::runtime_error(std::string(sample.status().message()));
    return *std::move(sample);
  }

  ByteTokenizer tokenizer_;
  const PromptFormat format_{tokenizer_, nullptr, ChatUse::kAsBenchmark};
  RulerSources sources_;
};

TEST_F(RulerTest, Has13TasksAndRunsThoseWithASource) {
  EXPECT_EQ(RulerTaskNames().size(), 13);
  EXPECT_EQ(AvailableRulerTasks(sources_).size(), 11);
  EXPECT_THAT(std::string(TryMake("qa_2", 4096).status().message()),
              HasSubstr("qa_2 needs a local copy of HotpotQA"));
  EXPECT_THAT(std::string(TryMake("niah", 4096).status().message()),
              HasSubstr("there is no RULER task niah, only niah_single_1, "));
  EXPECT_TRUE(UsesProse("niah_multiquery"));
  EXPECT_FALSE(UsesProse("niah_multikey_2"));
  EXPECT_FALSE(UsesProse("vt"));
}

TEST_F(RulerTest, SamplesFillTheirLengthAndRepeatWithTheirSeed) {
  for (const std::string& task : AvailableRulerTasks(sources_)) {
    for (const int context_len : {8192, 12000}) {
      const TaskSample sample = Make(task, context_len);
      const int tokens = *format_.CountTokens(sample) + sample.max_tokens;
      EXPECT_LE(tokens, context_len) << task;
      EXPECT_GT(tokens, context_len - 200) << task;  // bytes of a line or sentence
      EXPECT_EQ(sample.prompt(), Make(task, context_len).prompt()) << task;
      EXPECT_NE(sample.prompt(), Make(task, context_len, 1).prompt()) << task;
      EXPECT_NE(sample.prompt(), Make(task, context_len, 0, 2).prompt()) << task;
      EXPECT_TRUE(sample.has_chat_form);
      // Planted answers.
      EXPECT_EQ(ScoreAnswer(sample, absl::StrCat(" ", absl::StrJoin(sample.answers, ", "), ".")), 1)
          << task;
      EXPECT_EQ(ScoreAnswer(sample, " I do not know."), 0) << task;
    }
    EXPECT_EQ(TryMake(task, 150).status().code(), absl::StatusCode::kInvalidArgument) << task;
  }
}

TEST_F(RulerTest, ASingleNeedleStandsOnceInTheNoise) {
  const TaskSample sample = Make("niah_single_1", 4096);
  ASSERT_EQ(sample.answers.size(), 1);
  EXPECT_EQ(sample.answers[0].size(), 7);
  EXPECT_THAT(sample.context,
              StartsWith("A special magic number is hidden within the following text. Make sure to "
                         "memorize it. I will quiz you about the number afterwards.\n"));
  EXPECT_THAT(sample.question, StartsWith("What is the special magic number for "));
  EXPECT_THAT(sample.question, ::testing::EndsWith(" mentioned in the provided text?"));
  EXPECT_EQ(sample.max_tokens, 128);
  const std::string key = sample.question.substr(37, sample.question.size() - 37 - 32);
  EXPECT_EQ(sample.answer_prefix,
            " The special magic number for " + key + " mentioned in the provided text is");
  const std::vector<std::string> lines = Lines(sample.context);
  int needles = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i] == kNoise) continue;
    EXPECT_EQ(lines[i],
              "One of the special magic numbers for " + key + " is: " + sample.answers[0] + ".");
    ++needles;
  }
  EXPECT_EQ(needles, 1);
}

TEST_F(RulerTest, NeedlesAmongNeedlesAreAsManyAsFit) {
  const TaskSample numbers = Make("niah_multikey_2", 8192);
  EXPECT_GT(Count(numbers.context, "One of the special magic numbers for "), 100);
  EXPECT_EQ(Count(numbers.context, numbers.answers[0]), 1);

  const TaskSample uuids = Make("niah_multikey_3", 8192);
  const std::string& uuid = uuids.answers[0];
  ASSERT_EQ(uuid.size(), 36);
  for (const int dash : {8, 13, 18, 23}) EXPECT_EQ(uuid[dash], '-');
  EXPECT_EQ(uuid[14], '4');
  EXPECT_THAT(std::string("89ab"), HasSubstr(uuid.substr(19, 1)));
  EXPECT_EQ(Count(uuids.context, uuid), 1);
  EXPECT_THAT(uuids.question, StartsWith("What is the special magic uuid for "));
}

TEST_F(RulerTest, AKeyThatIsAskedForHasOneNeedleOnly) {
  // So few words that most other needles would have it too.
  sources_.words.adjectives = {"red", "blue"};
  sources_.words.nouns = {"stone", "river"};
  for (int index = 0; index < 10; ++index) {
    const TaskSample sample = Make("niah_multikey_2", 4096, index);
    const std::string key = sample.question.substr(37, sample.question.size() - 37 - 32);
    EXPECT_EQ(Count(sample.context, " for " + key + " is: "), 1);
  }
  EXPECT_EQ(Count(Make("niah_multikey_1", 4096).context, " is: "), 4);
}

TEST_F(RulerTest, SeveralKeysValuesAndQueries) {
  const TaskSample keys = Make("niah_multikey_1", 8192);
  EXPECT_EQ(Count(keys.context, "One of the special magic numbers for "), 4);
  EXPECT_EQ(keys.answers.size(), 1);

  const TaskSample values = Make("niah_multivalue", 8192);
  EXPECT_EQ(values.answers.size(), 4);
  EXPECT_THAT(values.context, StartsWith("Some special magic numbers are hidden within"));
  EXPECT_THAT(values.question, StartsWith("What are all the special magic numbers for "));
  EXPECT_THAT(values.answer_prefix, ::testing::EndsWith("in the provided text are"));
  EXPECT_EQ(ScoreAnswer(values, values.answers[0] + values.answers[2]), 0.5);

  const TaskSample queries = Make("niah_multiquery", 8192);
  EXPECT_EQ(queries.answers.size(), 4);
  EXPECT_EQ(Count(queries.question, ", "), 3);
  EXPECT_EQ(Count(queries.question, ", and "), 1);
  for (const std::string& value : queries.answers) EXPECT_EQ(Count(queries.context, value), 1);
}

TEST_F(RulerTest, EssayNeedlesStandBetweenWholeSentences) {
  std::set<size_t> places;
  for (int index = 0; index < 20; ++index) {
    const TaskSample sample = Make("niah_single_3", 6000, index);
    const size_t at = sample.context.find("One of the special magic uuids for ");
    ASSERT_NE(at, std::string::npos);
    places.insert(at * 10 / sample.context.size());
    const std::string before = sample.context.substr(0, at);
    EXPECT_TRUE(before.back() == '\n' || before.substr(before.size() - 2) == ". ") << before;
  }
  EXPECT_GT(places.size(), 5);  // of ten parts of the context
}

TEST_F(RulerTest, VariablesAreAssignedInOrderBehindASolvedExample) {
  const TaskSample sample = Make("vt", 8192);
  ASSERT_EQ(sample.answers.size(), 5);
  const std::string head =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  EXPECT_EQ(Count(sample.context, head), 2);
  const std::string own = sample.context.substr(sample.context.rfind(head));
  size_t at = 0;
  std::string value;
  for (size_t i = 0; i < 5; ++i) {
    const std::string assigned =
        "VAR " + sample.answers[i] + " = " + (i == 0 ? "" : "VAR " + sample.answers[i - 1]);
    const size_t found = own.find(assigned, at);
    ASSERT_NE(found, std::string::npos) << assigned;
    at = found;
    if (i == 0) value = own.substr(found + assigned.size(), 5);
  }
  EXPECT_EQ(Count(own, "VAR "), 9);
  EXPECT_EQ(sample.question, "Question: Find all variables that are assigned the value " + value +
                                 " in the text above.");
  EXPECT_EQ(sample.answer_prefix,
            " Answer: According to the chain(s) of variable assignment in the text above, 5 "
            "variables are assigned the value " +
                value + ", they are: ");
  // The example's answer: five other names of three letters.
  const std::string solved = sample.context.substr(0, sample.context.rfind(head));
  EXPECT_THAT(solved, ::testing::EndsWith("\n\n"));
  const std::vector<std::string> names =
      absl::StrSplit(solved.substr(solved.rfind("they are:  ") + 11), ' ');
  ASSERT_EQ(names.size(), 5);
  EXPECT_EQ(names[0].size(), 3);
  // Bytes are tokens here: the shortest example, five lines of noise.
  EXPECT_EQ(Count(solved, kNoise), 5);
}

TEST_F(RulerTest, CommonWordsStandTenTimesAsOftenAsOthers) {
  const TaskSample sample = Make("cwe", 40000);
  const std::string head = "Memorize the ones that appear most often.\n";
  EXPECT_EQ(Count(sample.context, head), 2);
  std::istringstream list(sample.context.substr(sample.context.rfind(head) + head.size()));
  std::map<std::string, int> counts;
  int number = 0;
  for (std::string index, word; list >> index >> word;) {
    EXPECT_EQ(index, std::to_string(++number) + ".");
    ++counts[word];
  }
  EXPECT_EQ(sample.answers.size(), 10);
  for (const auto& [word, count] : counts) {
    const bool is_common = std::count(sample.answers.begin(), sample.answers.end(), word) > 0;
    EXPECT_EQ(count, is_common ? 30 : 3) << word;
  }
  EXPECT_GT(counts.size(), 500);
  EXPECT_EQ(sample.max_tokens, 120);
  // Short contexts have easier numbers.
  const TaskSample small = Make("cwe", 3000);
  const std::string small_list = small.context.substr(small.context.rfind(head) + head.size());
  EXPECT_EQ(Count(small_list, " " + small.answers[0] + " "), 6);
}

TEST_F(RulerTest, FrequentWordsFollowAZetaDistribution) {
  const TaskSample sample = Make("fwe", 20000);
  EXPECT_THAT(sample.context, StartsWith("Read the following coded text and track"));
  const size_t begin = sample.context.find("coded words. ") + 13;
  std::istringstream text(sample.context.substr(begin));
  std::map<std::string, int> counts;
  for (std::string word; text >> word;) ++counts[word];
  std::vector<std::pair<int, std::string>> ranked;
  for (const auto& [word, count] : counts) ranked.emplace_back(count, word);
  std::sort(ranked.rbegin(), ranked.rend());
  EXPECT_EQ(ranked[0].second, "...");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ranked[i + 1].second, sample.answers[i]);
    // 1 / rank^2 of the most frequent one's.
    EXPECT_NEAR(ranked[i + 1].first, ranked[0].first / ((i + 2.0) * (i + 2.0)), 1);
  }
  EXPECT_GT(ranked[3].first, ranked[4].first);
  EXPECT_EQ(sample.max_tokens, 50);
}

}  // namespace
}  // namespace tokenbutler
