#include "tools/eval/question_tasks.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = Report::Json;

// A model of random weights answers nothing: what is tested is that every task's samples go
// through, and what becomes of the answers.
class QuestionTasksTest : public ::testing::Test {
 protected:
  QuestionTasksTest() : model_(folder_.path() / "tiny"), pool_(1) {
    std::filesystem::create_directory(model_);
    WriteTinyModel(model_);
  }

  TaskOptions Options(int context_len) const {
    TaskOptions options;
    options.eval.model = model_;
    options.eval.choice.settings = {"streaming_llm"};
    options.eval.choice.sink_tokens = 4;
    options.eval.choice.local_window = 128;
    options.eval.choice.resume = Path("rows.jsonl");
    options.eval.budgets = {"160"};
    options.eval.context_len = context_len;
    return options;
  }

  std::string Path(const std::string& name) const { return folder_.path() / name; }

  // The rows in the file of results; the first line holds facts.
  std::vector<Json> Rows() const {
    std::ifstream in(Path("rows.jsonl"));
    std::vector<Json> rows;
    for (std::string line; std::getline(in, line);) rows.push_back(Json::parse(line));
    return {rows.begin() + 1, rows.end()};
  }

  const TemporaryFolder folder_;
  const std::filesystem::path model_;
  ComputePool pool_;
};

TEST_F(QuestionTasksTest, CorefScoresForcedAndGeneratedAnswers) {
  CorefOptions options;
  options.task = Options(500);
  options.num_samples = 2;
  const auto report = RunCoref(options, pool_);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<Json> rows = Rows();
  ASSERT_EQ(rows.size(), 2 * 3);  // dense and two settings
  for (const Json& row : rows) {
    EXPECT_EQ(row["task"], "coref");
    EXPECT_EQ(row["question"], "strict");
    EXPECT_EQ(row["seed"], 1);
    EXPECT_EQ(row["expected"].size(), 1);
    EXPECT_GT(row["prompt_tokens"], 300);
    EXPECT_LT(row["answer_logprob"], 0);
    for (const char* share : {"score", "token_score", "generated_score", "coverage_mean",
                              "coverage_any", "coverage_mass"}) {
      EXPECT_GE(row[share], 0) << share;
      EXPECT_LE(row[share], 1) << share;
    }
    EXPECT_GE(row["coverage_any"], row["coverage_mean"]);
    EXPECT_TRUE(row["output"].is_string());
    // The name stands behind the sink and before the window: a window alone never sees it.
    if (row["setting"] == "dense") {
      EXPECT_EQ(row["coverage_mean"], 1);
    }
    if (row["setting"] == "streaming_llm") {
      EXPECT_EQ(row["coverage_any"], 0);
    }
    if (row["setting"] == "exact") {
      EXPECT_GT(row["coverage_any"], 0);
    }
  }
  const std::string table = report->Table();
  EXPECT_THAT(table, HasSubstr("coverage_mass"));
}

// A window is never smaller than a block, so short prompts want small ones.
TEST_F(QuestionTasksTest, SmallBlocksAllowSmallBudgets) {
  CorefOptions options;
  options.task = Options(400);
  options.task.eval.choice.settings = {"sketch", "exact"};
  options.task.eval.choice.local_window = 16;
  options.task.eval.budgets = {"1/8"};
  options.task.eval.block_size = 16;
  options.num_samples = 1;
  const auto report = RunCoref(options, pool_);
  ASSERT_TRUE(report.ok()) << report.status();
  int num_sparse = 0;
  for (const Json& row : Rows()) {
    if (row["setting"] == "dense") continue;
    EXPECT_EQ(row["token_budget"], 50) << row["setting"];
    EXPECT_LE(row["attended_tokens"], 50) << row["setting"];
    EXPECT_GT(row["attended_tokens"], 45) << row["setting"];
    ++num_sparse;
  }
  EXPECT_EQ(num_sparse, 2);
}

TEST_F(QuestionTasksTest, ARunThatIsRepeatedAsksOnlyWhatIsNew) {
  CorefOptions options;
  options.task = Options(500);
  options.num_samples = 1;
  ASSERT_TRUE(RunCoref(options, pool_).ok());
  std::vector<Json> first = Rows();
  // Another answer in the file stays what it is; a new sample is added.
  {
    std::ifstream in(Path("rows.jsonl"));
    std::string facts;
    std::getline(in, facts);
    first[0]["output"] = "planted";
    std::ofstream out(Path("rows.jsonl.new"));
    out << facts << "\n";
    for (const Json& row : first) out << row.dump() << "\n";
  }
  std::filesystem::rename(Path("rows.jsonl.new"), Path("rows.jsonl"));
  options.num_samples = 2;
  ASSERT_TRUE(RunCoref(options, pool_).ok());
  const std::vector<Json> second = Rows();
  ASSERT_EQ(second.size(), 6);
  EXPECT_EQ(std::vector<Json>(second.begin(), second.begin() + 3), first);

  // From nothing: the same answers. Another seed: another run, which may not share the file.
  std::filesystem::remove(Path("rows.jsonl"));
  ASSERT_TRUE(RunCoref(options, pool_).ok());
  std::vector<Json> third = Rows();
  ASSERT_EQ(third.size(), 6);
  EXPECT_EQ(third[4]["output"], second[4]["output"]);
  EXPECT_EQ(third[4]["answer_logprob"], second[4]["answer_logprob"]);
  options.task.seed = 2;
  EXPECT_EQ(RunCoref(options, pool_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(QuestionTasksTest, QuestionsGoTheStrictOrThePapersWay) {
  CorefOptions options;
  options.task = Options(500);
  options.num_samples = 1;
  ASSERT_TRUE(RunCoref(options, pool_).ok());
  options.task.question = QuestionPath::kPrefilled;
  ASSERT_TRUE(RunCoref(options, pool_).ok());
  const std::vector<Json> rows = Rows();
  ASSERT_EQ(rows.size(), 6);
  EXPECT_EQ(rows[0]["question"], "strict");
  EXPECT_EQ(rows[3]["question"], "papers");
  // Dense attention reads a question the same either way, up to rounding.
  EXPECT_EQ(rows[0]["setting"], "dense");
  EXPECT_EQ(rows[3]["setting"], "dense");
  EXPECT_NEAR(rows[0]["answer_logprob"].get<double>(), rows[3]["answer_logprob"].get<double>(),
              0.05 * std::abs(rows[0]["answer_logprob"].get<double>()));
}

TEST_F(QuestionTasksTest, RulerRunsEveryTaskThatFits) {
  RulerOptions options;
  options.task = Options(kTinyModelLen);
  options.task.eval.choice.settings = {"dense"};
  options.tasks = {"niah_single_1", "niah_multikey_2", "niah_single_2"};
  options.num_samples = 1;
  const auto report = RunRuler(options, pool_);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<Json> rows = Rows();
  ASSERT_EQ(rows.size(), 3 * 2);
  for (const Json& row : rows) {
    EXPECT_EQ(row["score"], 0) << row;
    EXPECT_FALSE(row.contains("coverage_mean"));
  }
  // None can be done, so there is no average.
  EXPECT_THAT(report->Table(), ::testing::Not(HasSubstr("average")));
  options.task.min_dense_score = 0;
  EXPECT_THAT(RunRuler(options, pool_)->Table(), HasSubstr("average"));

  options.tasks = {"cwe"};
  EXPECT_THAT(std::string(RunRuler(options, pool_).status().message()),
              HasSubstr("context_len is 512, cwe needs at least"));
  options.tasks = {"qa_1"};
  EXPECT_THAT(std::string(RunRuler(options, pool_).status().message()),
              HasSubstr("qa_1 needs a local copy of SQuAD"));
}

TEST_F(QuestionTasksTest, LongBenchKeepsWhatItsScriptNeeds) {
  std::filesystem::create_directory(Path("data"));
  folder_.Write("data/trec.jsonl",
                R"({"_id": "a", "input": "Question: Who?\nType:", "context": "Question: Where? )"
                R"(Type: Place", "answers": ["Human"], "all_classes": ["Place", "Human"], )"
                R"("length": 9})"
                "\n");
  LongBenchOptions options;
  options.task = Options(kTinyModelLen);
  options.data = Path("data");
  options.max_prompt_tokens = 200;
  const auto report = RunLongBench(options, pool_);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<Json> rows = Rows();
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[0]["task"], "trec");
  EXPECT_TRUE(rows[0]["score"].is_null());
  EXPECT_THAT(rows[0]["all_classes"], ElementsAre("Place", "Human"));
  EXPECT_THAT(rows[0]["expected"], ElementsAre("Human"));
  EXPECT_EQ(rows[0]["_id"], "a");

  options.task.eval.choice.resume = "";
  EXPECT_THAT(std::string(RunLongBench(options, pool_).status().message()),
              HasSubstr("longbench needs --resume FILE"));
}

TEST_F(QuestionTasksTest, AimeDrawsSeveralAnswers) {
  AimeTaskOptions options;
  options.task = Options(160);
  options.task.eval.choice.settings = {"dense"};
  options.data = {folder_.Write("aime24.jsonl", R"({"problem": "How many?", "answer": 25})")};
  options.num_answers = 3;
  const auto report = RunAime(options, pool_);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<Json> rows = Rows();
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0]["task"], "aime24");
  EXPECT_EQ(rows[0]["problem"], "1");
  ASSERT_EQ(rows[0]["output"].size(), 3);
  EXPECT_NE(rows[0]["output"][0], rows[0]["output"][1]);
  EXPECT_EQ(rows[0]["finish"].size(), 3);
  EXPECT_EQ(rows[0]["score"], 0);
}

}  // namespace
}  // namespace tokenbutler
