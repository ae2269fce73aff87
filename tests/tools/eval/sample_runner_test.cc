#include "tools/eval/sample_runner.h"

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "tests/tools/eval/tiny_evaluation.h"

namespace tokenbutler {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = Checkpoint::Json;

class SampleRunnerTest : public TinyEvaluation {
 protected:
  void Open(const EvalOptions& options) {
    auto session = EvalSession::Create(options, pool_);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    checkpoint_ = nullptr;  // the file belongs to one run at a time
    auto checkpoint = Checkpoint::Open(options.choice.resume, session_->Facts("test"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(checkpoint));
  }

  absl::Status Run(const SampleRunner::Task& task) {
    Progress progress("test", clock_, [](const std::string&) {});
    return SampleRunner(*session_, *checkpoint_, progress).Run(task);
  }

  static std::vector<int32_t> Tokens(uint32_t seed, int count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) {
      seed = seed * 1664525u + 1013904223u;
      token = static_cast<int32_t>(5 + (seed >> 16) % 600);
    }
    return tokens;
  }

  // Rows with everything that the outcome says.
  static SampleRunner::Task TaskOf(std::vector<Sample> samples, QuestionPath path) {
    SampleRunner::Task task;
    task.name = "test";
    task.question = path;
    task.samples = std::move(samples);
    task.row = [](const Sample&, const SampleOutcome& outcome) {
      Json row = {{"score", outcome.num_right()}};
      for (const SampleOutcome::AnswerToken& token : outcome.answer) {
        row["logprobs"].push_back(token.logprob);
        row["most_likely"].push_back(token.most_likely);
      }
      for (const Completion& completion : outcome.completions) {
        row["tokens"].push_back(completion.token_ids);
        row["texts"].push_back(completion.text);
      }
      for (const LayerProbes& layer : outcome.probes.layers) {
        row["probes"].push_back(layer.count);
        row["by_any"].push_back(layer.watched_by_any);
      }
      return row;
    };
    return task;
  }

  static Sample SampleOf(const std::string& id, uint32_t seed) {
    Sample sample{.id = id, .context = Tokens(seed, 300), .question = Tokens(seed + 1, 7)};
    sample.stop.ignore_eos = true;
    return sample;
  }

  Json Row(const std::string& sample, const std::string& setting) {
    const Json* row = checkpoint_->Find({{"sample", sample}, {"setting", setting}});
    EXPECT_NE(row, nullptr) << sample << ' ' << setting;
    return row == nullptr ? Json() : *row;
  }

  RealClock clock_;
  std::unique_ptr<EvalSession> session_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

// What a model generates greedily is, token by token, what it finds most likely when it is fed it.
TEST_F(SampleRunnerTest, AnAnswerThatWasGeneratedIsScoredAsRight) {
  EvalOptions options = Options(480);
  options.choice.resume.clear();
  for (const QuestionPath path : {QuestionPath::kDecoded, QuestionPath::kPrefilled}) {
    SCOPED_TRACE(std::string(QuestionPathName(path)));
    Open(options);
    Sample sample = SampleOf("a", 1);
    sample.max_new_tokens = 6;
    ASSERT_TRUE(Run(TaskOf({sample}, path)).ok());
    for (const char* setting : {"dense", "exact", "sketch", "random"}) {
      const auto tokens = Row("a", setting)["tokens"][0].get<std::vector<int32_t>>();
      ASSERT_THAT(tokens, SizeIs(6));
      EXPECT_EQ(Row("a", setting)["question"], std::string(QuestionPathName(path)));
      // The same setting is sure of it; planted mistakes are found where they are.
      Sample scored = SampleOf(std::string("of ") + setting, 1);
      scored.answer = tokens;
      Sample wrong = scored;
      wrong.id = std::string("not of ") + setting;
      wrong.answer[5] = wrong.answer[5] == 7 ? 8 : 7;
      ASSERT_TRUE(Run(TaskOf({scored, wrong}, path)).ok());
      EXPECT_EQ(Row(scored.id, setting)["score"], 6);
      EXPECT_EQ(Row(scored.id, setting)["most_likely"], Json(tokens));
      EXPECT_EQ(Row(wrong.id, setting)["score"], 5);
      EXPECT_LT(Row(wrong.id, setting)["logprobs"][5], Row(scored.id, setting)["logprobs"][5]);
    }
  }
}

TEST_F(SampleRunnerTest, APrefilledQuestionIsAnsweredAsDenseAttentionBegins) {
  EvalOptions options = Options(480);
  options.choice.resume.clear();
  Open(options);
  Sample sample = SampleOf("a", 1);
  sample.answer = {9, 10};
  ASSERT_TRUE(Run(TaskOf({sample}, QuestionPath::kPrefilled)).ok());
  const double dense = Row("a", "dense")["logprobs"][0].get<double>();
  for (const char* setting : {"exact", "sketch", "random"}) {
    EXPECT_NEAR(Row("a", setting)["logprobs"][0].get<double>(), dense, 1e-4) << setting;
  }
  EXPECT_GT(std::abs(Row("a", "random")["logprobs"][1].get<double>() -
                     Row("a", "dense")["logprobs"][1].get<double>()),
            1e-3);
  Open(options);
  ASSERT_TRUE(Run(TaskOf({sample}, QuestionPath::kDecoded)).ok());
  EXPECT_GT(std::abs(Row("a", "random")["logprobs"][0].get<double>() - dense), 1e-3)
      << "the question saw a part of the context only";
}

TEST_F(SampleRunnerTest, OneTokenOfAnAnswerIsEnough) {
  EvalOptions options = Options(480);
  options.choice.resume.clear();
  Sample longer = SampleOf("longer", 1), one = SampleOf("one", 1);
  longer.answer = {9, 10};
  one.answer = {9};
  for (const QuestionPath path : {QuestionPath::kDecoded, QuestionPath::kPrefilled}) {
    Open(options);
    ASSERT_TRUE(Run(TaskOf({longer, one}, path)).ok());
    for (const char* setting : {"dense", "exact"}) {
      EXPECT_EQ(Row("one", setting)["logprobs"][0], Row("longer", setting)["logprobs"][0]);
    }
  }
}

TEST_F(SampleRunnerTest, ARunThatIsStartedAgainDoesWhatIsLeft) {
  EvalOptions options = Options(480);
  std::vector<Sample> samples;
  for (int i = 0; i < 3; ++i) {
    samples.push_back(SampleOf(std::to_string(i), i));
    samples.back().answer = {9};
  }
  Open(options);
  ASSERT_TRUE(Run(TaskOf({samples[0], samples[1]}, QuestionPath::kDecoded)).ok());
  EXPECT_EQ(checkpoint_->rows().size(), 2 * 4);
  const std::vector<Json> before = checkpoint_->rows();
  options.choice.settings.emplace_back("quest");
  Open(options);
  int num_rows = 0;
  SampleRunner::Task task = TaskOf(samples, QuestionPath::kDecoded);
  task.row = [&](const Sample&, const SampleOutcome&) -> Json {
    ++num_rows;
    return {{"score", 1}};
  };
  ASSERT_TRUE(Run(task).ok());
  EXPECT_EQ(num_rows, 2 * 1 + 5);
  ASSERT_TRUE(Run(task).ok());
  EXPECT_EQ(num_rows, 7) << "nothing was left";
  EXPECT_EQ(checkpoint_->rows().size(), 3 * 5);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), checkpoint_->rows().begin()));
}

TEST_F(SampleRunnerTest, SeveralAnswersAreDrawnFromTheSameSeed) {
  EvalOptions options = Options(480);
  options.choice.resume.clear();
  options.num_completions = 3;
  Sample sample = SampleOf("a", 1);
  sample.max_new_tokens = 8;
  sample.sampling.temperature = 1;
  sample.sampling.n = 3;
  sample.sampling.seed = 5;
  std::map<std::string, Json> texts;
  for (int run = 0; run < 2; ++run) {
    Open(options);
    ASSERT_TRUE(Run(TaskOf({sample}, QuestionPath::kDecoded)).ok());
    for (const char* setting : {"dense", "exact"}) {
      const Json row = Row("a", setting);
      ASSERT_THAT(row["tokens"], SizeIs(3));
      EXPECT_NE(row["tokens"][0], row["tokens"][1]);
      if (run == 1) {
        EXPECT_EQ(row["tokens"], texts[setting]);
      }
      texts[setting] = row["tokens"];
    }
  }
}

TEST_F(SampleRunnerTest, WatchedTokensAreProbedWhereTheAnswerIsPredicted) {
  EvalOptions options = Options(480);
  options.choice.resume.clear();
  options.choice.settings = {"exact", "streaming_llm:sink=4,local=16"};
  options.probe_rate = 2;
  Open(options);
  Sample sample = SampleOf("a", 1);
  sample.answer = {9, 10, 11};
  sample.watched = {2, 100};
  ASSERT_TRUE(Run(TaskOf({sample}, QuestionPath::kDecoded)).ok());
  EXPECT_THAT(Row("a", "exact")["probes"], Each(3));
  EXPECT_THAT(Row("a", "streaming_llm:sink=4,local=16")["by_any"], Each(1.5))
      << "a sink token, and one that is never attended to";
  Open(options);
  ASSERT_TRUE(Run(TaskOf({sample}, QuestionPath::kPrefilled)).ok());
  EXPECT_THAT(Row("a", "exact")["probes"], Each(2)) << "the prefill predicts the first";
}

TEST_F(SampleRunnerTest, PoliciesThatWatchPromptsSeeTheQuestionWhenItIsPrefilled) {
  EvalOptions options = Options(480);
  options.choice.resume.clear();
  options.choice.settings = {"snapkv", "h2o"};
  Sample sample = SampleOf("a", 1);
  sample.answer = {9, 10};
  std::map<QuestionPath, Json> logprobs;
  for (const QuestionPath path : {QuestionPath::kDecoded, QuestionPath::kPrefilled}) {
    Open(options);
    ASSERT_TRUE(Run(TaskOf({sample}, path)).ok());
    logprobs[path] = Row("a", "snapkv")["logprobs"];
    EXPECT_THAT(Row("a", "h2o")["logprobs"], SizeIs(2));
  }
  EXPECT_NE(logprobs[QuestionPath::kDecoded], logprobs[QuestionPath::kPrefilled]);
}

TEST_F(SampleRunnerTest, SamplesThatCannotBeRunAreNamed) {
  EvalOptions options = Options(320);
  options.choice.resume.clear();
  Open(options);
  const auto message = [&](const Sample& sample) {
    const absl::Status status = Run(TaskOf({sample}, QuestionPath::kDecoded));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(SampleOf("nothing", 1)), HasSubstr("sample nothing"));
  Sample sample = SampleOf("long", 1);
  sample.answer = Tokens(1, 14);
  EXPECT_THAT(message(sample), HasSubstr("sample long: 321 tokens"));
  sample = SampleOf("no question", 1);
  sample.question.clear();
  sample.answer = {1};
  EXPECT_THAT(message(sample), HasSubstr("300 and 0 tokens"));
  EXPECT_TRUE(checkpoint_->rows().empty());
}

}  // namespace
}  // namespace tokenbutler
