#include "tools/eval/tasks/ruler_questions.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSquad = R"({"version": "v2.0", "data": [
  {"title": "A", "paragraphs": [
    {"context": "Ada lived in London.", "qas": [
      {"question": "Where did Ada live?", "id": "1", "is_impossible": false,
       "answers": [{"text": "London", "answer_start": 13}, {"text": "in London", "answer_start": 10}]},
      {"question": "Why?", "id": "2", "is_impossible": true, "answers": []}]},
    {"context": "She wrote programs.", "qas": []}]},
  {"title": "B", "paragraphs": [
    {"context": "Rivers flow.", "qas": [
      {"question": "What do rivers do?", "id": "3", "answers": [{"text": "flow"}]}]}]}]})";

constexpr const char* kHotpot = R"([
  {"_id": "x", "question": "Which is older?", "answer": "The mill", "type": "comparison",
   "supporting_facts": [["Mill", 0]], "context": [["Mill", ["Built 1700.", " Rebuilt."]], ["Inn", ["Built 1800."]]]},
  {"_id": "y", "question": "Who?", "answer": "Nobody", "context": [["Inn", ["Built 1800."]], ["Barn", ["Empty."]]]}])";

class QuestionsTest : public ::testing::Test {
 protected:
  absl::StatusOr<TaskSample> Make(const QuestionSet& set, int index, int context_len,
                                  uint64_t seed = 1) {
    TaskSample sample;
    sample.task = "qa_1";
    sample.context_len = context_len;
    sample.index = index;
    sample.seed = seed;
    return MakeQuestionSample(sample, set, format_);
  }

  const TemporaryFolder folder_;
  ByteTokenizer tokenizer_;
  const PromptFormat format_{tokenizer_, nullptr, ChatUse::kNever};
};

TEST_F(QuestionsTest, ReadsSquad) {
  const auto set = ReadSquad(folder_.Write("squad.json", kSquad));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(set->documents,
              ElementsAre("Ada lived in London.", "She wrote programs.", "Rivers flow."));
  ASSERT_EQ(set->questions.size(), 2);  // one cannot be answered
  EXPECT_EQ(set->questions[0].text, "Where did Ada live?");
  EXPECT_THAT(set->questions[0].answers, ElementsAre("London", "in London"));
  EXPECT_THAT(set->questions[0].documents, ElementsAre(0));
  EXPECT_THAT(set->questions[0].related_documents, ElementsAre(1));
  EXPECT_THAT(set->questions[1].documents, ElementsAre(2));
}

TEST_F(QuestionsTest, ReadsHotpotQa) {
  const auto set = ReadHotpotQa(folder_.Write("hotpot.json", kHotpot));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(set->documents,
              ElementsAre("Mill\nBuilt 1700. Rebuilt.", "Inn\nBuilt 1800.", "Barn\nEmpty."));
  EXPECT_THAT(set->questions[1].documents, ElementsAre(1, 2));
  EXPECT_THAT(set->questions[1].answers, ElementsAre("Nobody"));
}

TEST_F(QuestionsTest, SaysWhatIsWrongWithAFile) {
  const auto squad = [&](const char* text) {
    return std::string(ReadSquad(folder_.Write("x.json", text)).status().message());
  };
  EXPECT_THAT(squad("{"), HasSubstr("x.json is not JSON"));
  EXPECT_THAT(squad(R"({"data": [{}]})"), HasSubstr("does not have SQuAD's format"));
  EXPECT_THAT(squad(R"({"data": []})"), HasSubstr("has no questions"));
  EXPECT_THAT(
      std::string(ReadHotpotQa(folder_.Write("y.json", R"([{"question": 1}])")).status().message()),
      HasSubstr("does not have HotpotQA's format"));
  EXPECT_EQ(ReadSquad(folder_.path() / "none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(QuestionsTest, TheAnswersDocumentIsAmongThoseGiven) {
  const auto set = ReadSquad(folder_.Write("squad.json", kSquad));
  const auto sample = Make(*set, 0, 500);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->context,
              ::testing::StartsWith("Answer the question based on the given documents. Only give "
                                    "me the answer and do not output any other words.\n\nThe "
                                    "following are given documents.\n\nDocument 1:\n"));
  EXPECT_THAT(sample->context, HasSubstr(":\nAda lived in London.\n\n"));
  EXPECT_EQ(sample->question,
            "Answer the question based on the given documents. Only give me the answer and do not "
            "output any other words.\n\nQuestion: Where did Ada live?");
  EXPECT_EQ(sample->answer_prefix, " Answer:");
  EXPECT_EQ(ScoreAnswer(*sample, " london"), 1);
  EXPECT_EQ(ScoreAnswer(*sample, " Paris"), 0);
  // Related documents come before others, all come before any is repeated.
  EXPECT_THAT(Make(*set, 0, 395)->context, HasSubstr("She wrote programs."));
  EXPECT_THAT(Make(*set, 0, 395)->context, ::testing::Not(HasSubstr("Rivers flow.")));
  EXPECT_THAT(Make(*set, 0, 2000)->context, HasSubstr("Document 20:"));
}

TEST_F(QuestionsTest, OrderIsTheSeedsAndQuestionsRunOut) {
  const auto set = ReadSquad(folder_.Write("squad.json", kSquad));
  EXPECT_EQ(Make(*set, 1, 1500)->prompt(), Make(*set, 1, 1500)->prompt());
  EXPECT_NE(Make(*set, 1, 1500)->prompt(), Make(*set, 1, 1500, 2)->prompt());
  EXPECT_THAT(std::string(Make(*set, 2, 1500).status().message()),
              HasSubstr("qa_1 has 2 questions, number 2 was asked for"));
}

}  // namespace
}  // namespace tokenbutler
