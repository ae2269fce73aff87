#include "tools/eval/tasks/aime.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

TEST(AimeTest, ReadsTheFormatsThatCopiesHave) {
  const TemporaryFolder folder;
  // AIME 2024 as JSON lines with texts; 2025 with numbers, or a list with capitals.
  const std::string lines = folder.Write(
      "aime24.jsonl", R"({"id": 60, "problem": "How many?", "answer": "025", "year": "2024"})"
                      "\n\n"
                      R"({"id": 61, "problem": "Find $m+n$.", "answer": 204})"
                      "\n");
  const auto problems = ReadAime(lines);
  ASSERT_TRUE(problems.ok()) << problems.status();
  ASSERT_EQ(problems->size(), 2);
  EXPECT_EQ((*problems)[0].id, "60");
  EXPECT_EQ((*problems)[0].text, "How many?");
  EXPECT_EQ((*problems)[0].answer, "025");
  EXPECT_EQ((*problems)[1].answer, "204");
  const auto list =
      ReadAime(folder.Write("aime25.json", R"([{"Question": "Why?", "Answer": "7"}])"));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ((*list)[0].id, "1");
}

TEST(AimeTest, SaysWhatIsWrongWithAFile) {
  const TemporaryFolder folder;
  const auto message = [&](const char* text) {
    return std::string(ReadAime(folder.Write("x.jsonl", text)).status().message());
  };
  EXPECT_THAT(message(R"({"problem": "p"})"), HasSubstr("entry 1 has no answer"));
  EXPECT_THAT(message(R"({"answer": 1})"), HasSubstr("entry 1 has no problem or question"));
  EXPECT_THAT(message(R"({"problem": "p", "answer": "x"})"), HasSubstr("must be an integer"));
  EXPECT_THAT(message("{"), HasSubstr("line 1 of the file is no JSON"));
  EXPECT_THAT(message("3"), HasSubstr("entry 1 is no JSON object"));
  EXPECT_THAT(message(""), HasSubstr("has no entries"));
  EXPECT_EQ(ReadAime(folder.path() / "none").status().code(), absl::StatusCode::kNotFound);
}

TEST(AimeTest, AsksForABoxedAnswerAndSamplesIt) {
  const AimeProblem problem = {.id = "60", .text = "How many?", .answer = "025"};
  const TaskSample sample =
      MakeAimeSample("aime24", problem, 2, {.num_answers = 3, .max_tokens = 99, .seed = 5});
  EXPECT_EQ(sample.id(), "aime24/0/2");
  EXPECT_EQ(sample.prompt(),
            "How many?\n\nPlease reason step by step, and put your final answer within \\boxed{}.");
  EXPECT_EQ(sample.temperature, 0.6);
  EXPECT_EQ(sample.top_p, 0.95);
  EXPECT_EQ(sample.num_answers, 3);
  EXPECT_EQ(sample.max_tokens, 99);
  EXPECT_EQ(sample.seed, 5);
  EXPECT_TRUE(sample.has_chat_form);
  EXPECT_EQ(ScoreAnswer(sample, "Thus \\boxed{25}."), 1);
  EXPECT_EQ(ScoreAnswer(sample, "Thus \\boxed{26}."), 0);
  EXPECT_EQ(sample.extra_json, R"({"problem":"60"})");
}

}  // namespace
}  // namespace tokenbutler
