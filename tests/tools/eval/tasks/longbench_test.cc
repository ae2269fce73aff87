#include "tools/eval/tasks/longbench.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LongBenchTest : public ::testing::Test {
 protected:
  TaskSample Make(const std::string& task, const LongBenchEntry& entry, int max_prompt_tokens) {
    auto sample =
        MakeLongBenchSample(*FindLongBenchTask(task), entry, 4, max_prompt_tokens, format_);
    if (!sample.ok()) throw std::runtime_error(std::string(sample.status().message()));
    return *std::move(sample);
  }

  ByteTokenizer tokenizer_;
  const PromptFormat format_{tokenizer_, nullptr, ChatUse::kNever};
  const LongBenchEntry entry_ = {.id = "a1",
                                 .context = "A passage with {input} in it.",
                                 .input = "Who?",
                                 .answers = {"Ada", "Lovelace"},
                                 .all_classes = {"x", "y"},
                                 .length = 7};
};

TEST_F(LongBenchTest, HasThe21TasksWithAContextInEveryFormat) {
  std::set<std::string> names;
  for (const LongBenchTask& task : LongBenchTasks()) {
    names.insert(task.name);
    EXPECT_NE(task.format.find("{context}"), std::string::npos) << task.name;
    EXPECT_GT(task.max_tokens, 0);
  }
  EXPECT_EQ(names.size(), 21);
  EXPECT_THAT(std::string(FindLongBenchTask("nq").status().message()), HasSubstr("narrativeqa, "));
}

TEST_F(LongBenchTest, FillsTheFormatAndCutsItBehindTheContext) {
  const TaskSample sample = Make("hotpotqa", entry_, 1000);
  EXPECT_EQ(sample.context,
            "Answer the question based on the given passages. Only give me the answer and do not "
            "output any other words.\n\nThe following are given passages.\nA passage with {input} "
            "in it.");
  EXPECT_EQ(sample.question,
            "\n\nAnswer the question based on the given passages. Only give me the answer and do "
            "not output any other words.\n\nQuestion: Who?\nAnswer:");
  EXPECT_EQ(sample.answers, entry_.answers);
  EXPECT_EQ(sample.metric, AnswerMetric::kScript);
  EXPECT_EQ(sample.max_tokens, 32);
  EXPECT_TRUE(sample.has_chat_form);
  EXPECT_EQ(sample.index, 4);
  EXPECT_EQ(sample.extra_json, R"({"_id":"a1","all_classes":["x","y"],"length":7})");
}

TEST_F(LongBenchTest, FewShotAndCodeTasksAreNoChats) {
  for (const char* name : {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}) {
    EXPECT_FALSE(Make(name, entry_, 2000).has_chat_form) << name;
  }
  EXPECT_THAT(Make("samsum", entry_, 2000).stops, ElementsAre("\n"));
  EXPECT_THAT(Make("trec", entry_, 2000).stops, ElementsAre());
}

TEST_F(LongBenchTest, CutsLongPromptsInTheMiddle) {
  LongBenchEntry entry = entry_;
  entry.context = std::string(500, 'a') + "MIDDLE" + std::string(500, 'z');
  const std::string whole = Make("multifieldqa_en", entry, 100000).prompt();
  const TaskSample sample = Make("multifieldqa_en", entry, 601);
  // 300 tokens of each half; the first is BOS.
  EXPECT_EQ(sample.prompt(), whole.substr(0, 299) + whole.substr(whole.size() - 300));
  EXPECT_EQ(sample.question, Make("multifieldqa_en", entry, 100000).question);
  EXPECT_EQ(sample.context.find("MIDDLE"), std::string::npos);
}

TEST_F(LongBenchTest, AQuestionThatIsCutIsWhatIsLeftOfIt) {
  LongBenchEntry entry = entry_;
  entry.input = std::string(1000, 'q');
  const TaskSample sample = Make("repobench-p", entry, 100);
  EXPECT_EQ(sample.question, std::string(31, 'q') + "Next line of code:\n");
  EXPECT_EQ(sample.context.size(), 49);
}

TEST_F(LongBenchTest, ReadsTheBenchmarksFiles) {
  const TemporaryFolder folder;
  const std::string path = folder.Write(
      "trec.jsonl",
      R"({"input": "Question: Who?\nType:", "context": "Question: ...", "answers": ["Individual"],)"
      R"( "length": 12, "dataset": "trec", "language": "en", "all_classes": ["Individual", "Date"],)"
      R"( "_id": "b2"})"
      "\n"
      R"({"input": "i", "context": "c", "answers": ["a"], "all_classes": null})"
      "\n");
  const auto entries = ReadLongBench(path);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2);
  EXPECT_EQ((*entries)[0].id, "b2");
  EXPECT_EQ((*entries)[0].length, 12);
  EXPECT_THAT((*entries)[0].all_classes, ElementsAre("Individual", "Date"));
  EXPECT_THAT((*entries)[1].all_classes, ElementsAre());

  const auto message = [&](const char* text) {
    return std::string(ReadLongBench(folder.Write("x.jsonl", text)).status().message());
  };
  EXPECT_THAT(message(R"({"input": "i", "context": 3, "answers": ["a"]})"),
              HasSubstr("entry 1 does not have LongBench's format"));
  EXPECT_THAT(message(R"({"input": "i", "context": "c", "answers": []})"),
              HasSubstr("entry 1 has no answers"));
}

}  // namespace
}  // namespace tokenbutler
