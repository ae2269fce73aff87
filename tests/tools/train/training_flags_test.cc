#include "tools/train/training_flags.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<TrainingCommandLine> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "tokenbutler-train");
  return ParseTrainingFlags(static_cast<int>(words.size()), words.data());
}

std::string Error(std::vector<const char*> more) {
  std::vector<const char*> words = {"m.gguf", "--text", "a", "--output", "out"};
  words.insert(words.end(), more.begin(), more.end());
  return std::string(Parse(words).status().message());
}

TEST(TrainingFlagsTest, DefaultsAreThoseOfTheOptions) {
  const auto line = Parse({"m.gguf", "--text", "a", "b", "--output", "out"});
  ASSERT_TRUE(line.ok()) << line.status();
  const TrainingFlags& flags = *line->flags;
  EXPECT_EQ(flags.model, "m.gguf");
  EXPECT_THAT(flags.corpus.texts, ElementsAre("a", "b"));
  EXPECT_EQ(flags.corpus.tokens_per_sequence, 2048);
  EXPECT_TRUE(flags.training.student.late);
  TrainingOptions wanted;
  EXPECT_EQ(flags.training.ToJson(), wanted.ToJson());
  EXPECT_EQ(flags.training.output, "out");
  EXPECT_FALSE(flags.dry_run);
}

TEST(TrainingFlagsTest, EveryFlagReachesItsOption) {
  const auto line = Parse({"m.gguf",
                           "--text",
                           "a",
                           "--validation",
                           "v",
                           "--field",
                           "body",
                           "--tokens",
                           "512",
                           "--validation-sequences",
                           "3",
                           "--max-tokens",
                           "9999",
                           "--output",
                           "out",
                           "--dry-run",
                           "--restart",
                           "--threads",
                           "3",
                           "--dtype",
                           "float32",
                           "--kind",
                           "lookahead",
                           "--keys",
                           "full",
                           "--layers-per-predictor",
                           "2",
                           "--correction-rank",
                           "8",
                           "--point",
                           "after_attention",
                           "--pooling",
                           "mean_softmax",
                           "--steps",
                           "70",
                           "--sequences-per-step",
                           "2",
                           "--steps-per-sequence",
                           "1",
                           "--rows",
                           "33",
                           "--learning-rate",
                           "0.5",
                           "--warmup",
                           "0.25",
                           "--weight-decay",
                           "0.125",
                           "--clip-norm",
                           "2",
                           "--sink-tokens",
                           "4",
                           "--local-window",
                           "16",
                           "--calibration-sequences",
                           "5",
                           "--seed",
                           "11",
                           "--validate-every",
                           "7",
                           "--patience",
                           "6",
                           "--checkpoint-every",
                           "9"});
  ASSERT_TRUE(line.ok()) << line.status();
  const TrainingFlags& flags = *line->flags;
  EXPECT_TRUE(flags.dry_run);
  EXPECT_TRUE(flags.restart);
  EXPECT_EQ(flags.num_threads, 3);
  EXPECT_EQ(flags.dtype, "float32");
  EXPECT_THAT(flags.corpus.validation, ElementsAre("v"));
  EXPECT_EQ(flags.corpus.field, "body");
  EXPECT_EQ(flags.corpus.tokens_per_sequence, 512);
  EXPECT_EQ(flags.corpus.num_validation, 3);
  EXPECT_EQ(flags.corpus.most_tokens, 9999);
  EXPECT_EQ(flags.corpus.seed, 11u);
  EXPECT_EQ(flags.training.checkpoint_every, 9);
  EXPECT_EQ(flags.training.ToJson().dump(),
            R"({"kind":"lookahead","keys":"full","layers_per_predictor":2,)"
            R"("point":"after_attention","late":false,"correction_rank":8,)"
            R"("pooling":"mean_softmax","num_steps":70,"sequences_per_step":2,"rows":33,)"
            R"("steps_per_sequence":1,)"
            R"("learning_rate":0.5,"warmup":0.25,"weight_decay":0.125,"clip_norm":2.0,)"
            R"("sink_tokens":4,"local_window":16,"calibration_sequences":5,"seed":11,)"
            R"("validate_every":7,"patience":6})");
  const auto mlp =
      Parse({"m", "--text", "a", "--output", "o", "--kind", "tokenbutler", "--projected-dim", "32",
             "--hidden-dim", "64", "--input", "after_norm", "--late", "false"});
  ASSERT_TRUE(mlp.ok()) << mlp.status();
  const StudentOptions& student = mlp->flags->training.student;
  EXPECT_EQ(student.kind, PredictorKind::kTokenButler);
  EXPECT_EQ(student.projected_dim, 32);
  EXPECT_EQ(student.hidden_dim, 64);
  EXPECT_EQ(student.input, PredictorInput::kAfterNorm);
  EXPECT_FALSE(student.late);
}

TEST(TrainingFlagsTest, WrongFlagsAreNamed) {
  EXPECT_THAT(Error({"--kind", "pca"}), HasSubstr("kind is pca"));
  EXPECT_THAT(Error({"--kind", "x"}), HasSubstr("--kind"));
  EXPECT_THAT(Error({"--keys", "bits2"}), HasSubstr("'bits2' must be projected or full"));
  EXPECT_THAT(Error({"--keys", "full"}), HasSubstr("correction_rank"));
  EXPECT_THAT(Error({"--point", "x"}), HasSubstr("--point"));
  EXPECT_THAT(Error({"--tokens", "1"}), HasSubstr("tokens_per_sequence is 1"));
  EXPECT_THAT(Error({"--steps", "0"}), HasSubstr("num_steps is 0"));
  EXPECT_THAT(Error({"--threads", "0"}), HasSubstr("--threads"));
  EXPECT_THAT(Error({"--nonsense"}), HasSubstr("--nonsense"));
  EXPECT_THAT(std::string(Parse({"m.gguf"}).status().message()), HasSubstr("required"));
  const auto help = Parse({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_FALSE(help->flags.has_value());
  EXPECT_THAT(help->text, HasSubstr("--correction-rank"));
}

}  // namespace
}  // namespace tokenbutler
