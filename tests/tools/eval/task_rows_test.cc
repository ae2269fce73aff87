#include "tools/eval/task_rows.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using Json = Checkpoint::Json;

TaskSample Question() {
  TaskSample sample;
  sample.task = "vt";
  sample.context_len = 4096;
  sample.index = 3;
  sample.seed = 7;
  sample.answers = {"AB", "CD"};
  sample.max_tokens = 30;
  return sample;
}

TaskPrompt Prompt() {
  TaskPrompt prompt;
  prompt.context = {1, 2, 3, 4, 5};
  prompt.question = {6, 7};
  return prompt;
}

SampleOutcome Answered(std::vector<std::string> texts) {
  SampleOutcome outcome;
  for (std::string& text : texts) {
    outcome.completions.push_back(
        {.text = std::move(text), .token_ids = {}, .reason = FinishReason::kEos});
  }
  return outcome;
}

TEST(RunnerSampleTest, TakesOverWhatTheRunnerNeeds) {
  TaskSample question = Question();
  question.stops = {"\n"};
  question.temperature = 0.5;
  question.num_answers = 4;
  TaskPrompt prompt = Prompt();
  prompt.forced_answer = {8, 9};
  prompt.evidence = {{1, 3}, {4, 5}};
  const Sample sample = RunnerSample(question, prompt);
  EXPECT_EQ(sample.id, "vt/4096/3");
  EXPECT_EQ(sample.context, prompt.context);
  EXPECT_EQ(sample.question, prompt.question);
  EXPECT_EQ(sample.answer, prompt.forced_answer);
  EXPECT_EQ(sample.max_new_tokens, 30);
  EXPECT_EQ(sample.sampling.temperature, 0.5f);
  EXPECT_EQ(sample.sampling.n, 4);
  EXPECT_THAT(sample.stop.strings, ElementsAre("\n"));
  EXPECT_EQ(sample.sampling.min_tokens, 1);
  EXPECT_THAT(sample.watched, ElementsAre(1, 2, 4));
  question.index = 4;
  EXPECT_NE(RunnerSample(question, prompt).sampling.seed, sample.sampling.seed);
}

TEST(TaskRowTest, ScoresPlantedAnswers) {
  const Json row = TaskRow(Question(), Prompt(), Answered({"cd it is"}));
  EXPECT_EQ(row["score"], 0.5);
  EXPECT_EQ(row["output"], "cd it is");
  EXPECT_EQ(row["finish"], "eos");
  EXPECT_EQ(row["seed"], 7);
  EXPECT_EQ(row["prompt_tokens"], 7);
  EXPECT_THAT(row["expected"], ElementsAre("AB", "CD"));
}

TEST(TaskRowTest, SeveralAnswersAreAveraged) {
  const Json row = TaskRow(Question(), Prompt(), Answered({"AB CD", "AB", "x", "CD AB"}));
  EXPECT_EQ(row["score"], 0.625);
  EXPECT_EQ(row["output"].size(), 4);
}

TEST(TaskRowTest, AScriptsScoreIsLeftToIt) {
  TaskSample question = Question();
  question.metric = AnswerMetric::kScript;
  question.extra_json = R"({"length": 5})";
  const Json row = TaskRow(question, Prompt(), Answered({"AB"}));
  EXPECT_TRUE(row["score"].is_null());
  EXPECT_EQ(row["length"], 5);
}

TEST(TaskRowTest, CoverageIsMeantThreeWays) {
  SampleOutcome outcome = Answered({"AB"});
  outcome.answer = {{.logprob = -1, .most_likely = 4, .is_right = true},
                    {.logprob = -2, .most_likely = 4, .is_right = false}};
  outcome.attention.attended_lists = 1;
  // Two layers of two heads, the first of which chose nothing.
  outcome.probes.layers = {{}, {.count = 2, .watched_by_any = 1.5}};
  outcome.probes.heads = {
      {},
      {},
      {.count = 2, .watched = 1.0, .watched_mass = 0.8, .attended_watched_mass = 0.6},
      {.count = 2, .watched = 0.5, .watched_mass = 0.2, .attended_watched_mass = 0.1}};
  const Json row = TaskRow(Question(), Prompt(), outcome);
  EXPECT_EQ(row["score"], 0);
  EXPECT_EQ(row["token_score"], 0.5);
  EXPECT_EQ(row["generated_score"], 0.5);
  EXPECT_EQ(row["answer_logprob"], -3);
  EXPECT_EQ(row["coverage_mean"], 0.375);  // (0.5 + 0.25) / 2
  EXPECT_EQ(row["coverage_any"], 0.75);
  EXPECT_NEAR(row["coverage_mass"].get<double>(), 0.7, 1e-12);

  // Dense attention covers everything; where nothing was compared, nothing is said.
  outcome.probes = {};
  EXPECT_TRUE(TaskRow(Question(), Prompt(), outcome)["coverage_mean"].is_null());
  outcome.attention.attended_lists = 0;
  EXPECT_EQ(TaskRow(Question(), Prompt(), outcome)["coverage_mass"], 1);
}

std::vector<Json> Scores(std::vector<double> scores) {
  std::vector<Json> rows;
  for (const double score : scores) {
    rows.push_back({{"sample", std::to_string(rows.size())},
                    {"score", score},
                    {"attended_tokens", 10 * score}});
  }
  return rows;
}

Json SummaryOf(const ComparedRows& rows) {
  return TaskSummary("vt", QuestionPath::kDecoded, {.label = "exact", .params = {}}, rows);
}

TEST(TaskSummaryTest, ComparesWithDenseAndExactOnTheSameSamples) {
  const Json worse = SummaryOf({.own = Scores({0, 0, 0, 0.5}),
                                .dense = Scores({1, 1, 1, 1}),
                                .exact = Scores({0, 0, 0, 0.5})});
  EXPECT_EQ(worse["question"], "strict");
  EXPECT_EQ(worse["score"], 0.125);
  EXPECT_EQ(worse["minus_dense"], -0.875);
  EXPECT_EQ(worse["vs_dense"], "worse");
  EXPECT_EQ(worse["vs_exact"], "tie");
  EXPECT_EQ(worse["attended_tokens"], 1.25);
  EXPECT_EQ(worse["samples"], 4);
  const Json tie = SummaryOf(
      {.own = Scores({1, 0, 1, 0}), .dense = Scores({0, 1, 1, 0}), .exact = Scores({0, 0, 0, 0})});
  EXPECT_EQ(tie["vs_dense"], "tie");
  // The last two samples have no pair.
  const Json fewer = SummaryOf({.own = Scores({1, 1, 0, 0}), .dense = Scores({1, 1}), .exact = {}});
  EXPECT_EQ(fewer["minus_dense"], 0);
  EXPECT_EQ(fewer["score"], 0.5);
  EXPECT_TRUE(fewer["vs_exact"].is_null());
  EXPECT_TRUE(SummaryOf({.own = Scores({1}), .dense = {}, .exact = {}})["vs_dense"].is_null());
}

TEST(TaskSummaryTest, WithoutScoresThereIsNone) {
  std::vector<Json> rows = Scores({0});
  rows[0]["score"] = nullptr;
  const Json summary = SummaryOf({.own = rows, .dense = rows, .exact = rows});
  EXPECT_TRUE(summary["score"].is_null());
  EXPECT_TRUE(summary["vs_dense"].is_null());
  EXPECT_EQ(summary["samples"], 1);
}

}  // namespace
}  // namespace tokenbutler
