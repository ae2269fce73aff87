// Whole runs on the tiny model: what they reach, what they leave, and what they survive.
#include "tools/train/trainer.h"

#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/predictor/predictor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/train/training_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using Event = TrainingEvent;

constexpr char kDigest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

class TrainerTest : public testing::Test {
 protected:
  std::string Output(const std::string& name) const { return folder_.path() / name; }

  absl::StatusOr<std::unique_ptr<Trainer>> New(const TrainingOptions& options) {
    return Trainer::Create(options, *teacher_, sequences_, kDigest, {{"author", "a test"}});
  }
  // Until it is told to stop after `last_step`; -1: never.
  absl::StatusOr<TrainingResult> Run(const TrainingOptions& options, int64_t last_step = -1) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, New(options));
    std::atomic<bool> stop = false;
    return trainer->Run({.on_event =
                             [&](const Event& event) {
                               events_.push_back(event);
                               if (event.step == last_step) stop = true;
                             },
                         .stop = &stop});
  }

  TemporaryFolder folder_;
  TinyTeacher teacher_;
  RepeatingSequences sequences_;
  std::vector<Event> events_;
};

// The file of a run, served with a budget of half of the tokens.
void Serve(const std::string& path, const std::vector<int32_t>& tokens,
           std::optional<KeyFormat> keys) {
  const auto predictor = ReadPredictor(path);
  ASSERT_TRUE(predictor.ok()) << predictor.status();
  EXPECT_EQ(predictor->model_sha256, std::vector<std::string>{kDigest});
  AttentionParams params;
  params.policy = AttentionPolicy::kTokenButler;
  params.token_budget = 48;
  params.sink_tokens = 4;
  params.local_window = 16;
  params.keys = keys;
  TinyTeacher served({.predictor = std::make_shared<const Predictor>(*predictor)});
  BlockTable sequence = served.model().NewSequence(200, params);
  const std::unique_ptr<SequenceState> state = served.model().NewState(params);
  served.model().Prefill(sequence, tokens, 40, state.get());
  for (const float logit : served.model().Decode(sequence, tokens, state.get())) {
    ASSERT_TRUE(std::isfinite(logit));
  }
  EXPECT_LT(state->stats().attended_tokens, state->stats().context_tokens / 2);
}

class TrainedKindsTest : public TrainerTest, public testing::WithParamInterface<PredictorKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, TrainedKindsTest,
                         testing::Values(PredictorKind::kTokenButler, PredictorKind::kLookahead),
                         [](const auto& kind) {
                           return std::string(PredictorKindName(kind.param));
                         });

TEST_P(TrainedKindsTest, ARunLowersTheLossAndTheEngineUsesWhatItGives) {
  TrainingOptions options = TinyTraining(GetParam(), Output("run"));
  const auto result = Run(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->is_finished);
  EXPECT_EQ(result->steps, 40);
  // An MLP has little to learn from random tokens.
  const float share = GetParam() == PredictorKind::kTokenButler ? 0.95f : 0.8f;
  EXPECT_LT(result->best_loss, share * result->first_loss);
  EXPECT_GT(result->best_loss, 0);
  ASSERT_EQ(events_.size(), 40u + 5);  // validations before the first step and after each tenth
  EXPECT_EQ(events_.front().kind, Event::Kind::kValidation);
  EXPECT_EQ(events_.front().loss, result->first_loss);
  EXPECT_EQ(events_.front().layers.size(), 5u);

  const std::string file = Output("run/predictor.safetensors");
  EXPECT_EQ(ReadPredictor(file)->kind, GetParam());
  Serve(file, *sequences_.Validation(0), std::nullopt);
}

// For low-bit keys: early queries that are nearer to the later real ones.
TEST_F(TrainerTest, ACorrectionAloneLowersTheLossAndIsServedWithLowBitKeys) {
  TrainingOptions options = TinyTraining(PredictorKind::kLookahead, Output("run"));
  options.student.keys = TrainedKeys::kFull;
  options.student.late = false;
  options.student.layers_per_predictor = 1;
  options.student.point = LayerPoint::kAfterAttention;
  options.student.correction_rank = 8;
  options.num_steps = 100;
  const auto result = Run(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(result->best_loss, 0.95f * result->first_loss);
  EXPECT_EQ(events_.front().layers.size(), 4u);
  EXPECT_FALSE(events_.front().layers[0].late.has_value());
  Serve(Output("run/predictor.safetensors"), *sequences_.Validation(0), KeyFormat::kBits2);
}

TEST_P(TrainedKindsTest, AResumedRunGivesTheSameBits) {
  const auto whole = Run(TinyTraining(GetParam(), Output("whole")));
  ASSERT_TRUE(whole.ok()) << whole.status();
  const TrainingOptions options = TinyTraining(GetParam(), Output("parts"));
  for (const int64_t last : {7, 10, 23}) {
    const auto part = Run(options, last);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->steps, last);
    EXPECT_FALSE(part->is_finished);
  }
  const auto last = Run(options);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_TRUE(last->is_finished);
  EXPECT_EQ(last->best_loss, whole->best_loss);
  const auto a = *TrainingCheckpoint::Read(Output("whole/checkpoint"), {});
  const auto b = *TrainingCheckpoint::Read(Output("parts/checkpoint"), {});
  EXPECT_EQ(a->values, b->values);
  EXPECT_EQ(a->best_values, b->best_values);
  EXPECT_EQ(a->first_moment, b->first_moment);
  EXPECT_EQ(a->second_moment, b->second_moment);
  EXPECT_EQ(a->log_bytes, ReadFile(Output("whole/log.jsonl")).size());

  // A run that is finished stays so.
  events_.clear();
  EXPECT_EQ(Run(options)->steps, 40);
  EXPECT_TRUE(events_.empty());
}

TEST_P(TrainedKindsTest, APredictorThatWasTakenAwayIsWrittenAgain) {
  const TrainingOptions options = TinyTraining(GetParam(), Output("run"));
  ASSERT_TRUE(Run(options).ok());
  const std::string file = Output("run/predictor.safetensors");
  const size_t size = ReadFile(file).size();
  const auto written = ReadPredictor(file);
  ASSERT_TRUE(written.ok()) << written.status();
  std::filesystem::remove(file);
  ASSERT_TRUE(Run(options).ok());
  EXPECT_NEAR(ReadFile(file).size(), size, 64) << "but for the seconds";
  const auto again = ReadPredictor(file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->kind, written->kind);
}

TEST_F(TrainerTest, LinesBehindTheCheckpointAreWrittenAgain) {
  const TrainingOptions options = TinyTraining(PredictorKind::kLookahead, Output("run"));
  ASSERT_TRUE(Run(options, 20).ok());
  const std::string log = ReadFile(Output("run/log.jsonl"));
  folder_.Write("run/log.jsonl", log + R"({"type": "step", "step": 21)");
  ASSERT_TRUE(Run(options).ok());
  const std::string all = ReadFile(Output("run/log.jsonl"));
  EXPECT_EQ(all.substr(0, log.size()), log);
  EXPECT_THAT(all.substr(log.size(), 30), HasSubstr(R"({"type":"step","step":21,)"));
}

TEST_F(TrainerTest, StopsWhenNothingGetsBetter) {
  TrainingOptions options = TinyTraining(PredictorKind::kLookahead, Output("run"));
  options.num_steps = 1000;
  options.validate_every = 2;
  options.patience = 3;
  options.learning_rate = 1.0f;  // destroys what it began with
  options.warmup = 0;
  const auto result = Run(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->stopped_early);
  EXPECT_TRUE(result->is_finished);
  EXPECT_EQ(result->steps, result->best_step + 6);
  // The file is the best one.
  const auto file = *ReadPredictor(Output("run/predictor.safetensors"));
  const auto state = *TrainingCheckpoint::Read(Output("run/checkpoint"), {});
  for (size_t i = 0; i < file.key_projection.size(); ++i) {
    ASSERT_EQ(file.key_projection[i], ToFloat(ToBF16(state->best_values[i])));
  }
}

// Sequences that break the model's numbers from one step on.
class PoisonedTeacher : public RepeatingSequences {
 public:
  absl::StatusOr<std::vector<int32_t>> Training(int64_t index) override {
    if (index == 3) *poisoned = std::numeric_limits<float>::quiet_NaN();
    return RepeatingSequences::Training(index);
  }
  float* poisoned = nullptr;
};

TEST_F(TrainerTest, NaNIsAnErrorThatKeepsTheLastCheckpoint) {
  const TrainingOptions options = TinyTraining(PredictorKind::kLookahead, Output("run"));
  PoisonedTeacher sequences;
  // The input norm of a layer that is predicted for.
  const TensorView& norm = teacher_->model().weights->layers[3].input_norm;
  sequences.poisoned = const_cast<float*>(norm.as<float>());
  const float healthy = *sequences.poisoned;
  const auto trainer = *Trainer::Create(options, *teacher_, sequences, kDigest, {});
  const auto result = trainer->Run({});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("step 13: the loss is"), HasSubstr("must be finite")));
  EXPECT_TRUE(ReadPredictor(Output("run/predictor.safetensors")).ok());

  *sequences.poisoned = healthy;
  const auto again = New(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->steps_done(), 10);
}

TEST_F(TrainerTest, AnotherRunsCheckpointIsRefused) {
  TrainingOptions options = TinyTraining(PredictorKind::kLookahead, Output("run"));
  ASSERT_TRUE(Run(options, 10).ok());
  const std::string before = ReadFile(Output("run/checkpoint"));
  options.seed = 2;
  EXPECT_THAT(std::string(New(options).status().message()),
              HasSubstr("is of a run with seed 1, this one has 2"));
  options.seed = 1;
  const auto other_model =
      Trainer::Create(options, *teacher_, sequences_, std::string(64, 'f'), {});
  EXPECT_EQ(other_model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other_model.status().message()), HasSubstr("model_sha256"));
  RepeatingSequences longer(100);
  EXPECT_THAT(
      std::string(Trainer::Create(options, *teacher_, longer, kDigest, {}).status().message()),
      HasSubstr("tokens_per_sequence 96, this one has 100"));
  EXPECT_EQ(ReadFile(Output("run/checkpoint")), before);
}

TEST_F(TrainerTest, RefusesWhatCannotBeTrained) {
  TrainingOptions options = TinyTraining(PredictorKind::kLookahead, Output("run"));
  RepeatingSequences too_long(513), none(96, 0);
  EXPECT_THAT(
      std::string(Trainer::Create(options, *teacher_, too_long, kDigest, {}).status().message()),
      HasSubstr("sequences have 513 tokens, must have 2 to 512"));
  EXPECT_THAT(
      std::string(Trainer::Create(options, *teacher_, none, kDigest, {}).status().message()),
      HasSubstr("0 validation sequences"));
  options.student.projected_dim = 32;
  EXPECT_THAT(std::string(New(options).status().message()), HasSubstr("must be at most 16"));
  options = TinyTraining(PredictorKind::kLookahead, folder_.Write("file", "") + "/run");
  EXPECT_THAT(std::string(New(options).status().message()), HasSubstr("cannot be made"));
}

TEST_F(TrainerTest, AnEstimateChangesNothing) {
  TrainingOptions options = TinyTraining(PredictorKind::kTokenButler, Output("run"));
  const auto trainer = *New(options);
  const auto estimate = trainer->Estimate();
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  // 2 producers of E = 32, I = 12, G H d' = 64; L (Hkv + H) d_h d' = 5 * 6 * 128.
  EXPECT_EQ(estimate->num_parameters, 2 * (2 * 32 + 12 * 32 + 64 * 12) + 5 * 6 * 128);
  // 5 layers of qkv 128 x 32 + 128, o 32 x 64, MLP 3 x 64 x 32, norms 64; 708 x 32 + 32.
  EXPECT_EQ(estimate->num_model_parameters,
            5 * (128 * 32 + 128 + 32 * 64 + 3 * 64 * 32 + 64) + 708 * 32 + 32);
  EXPECT_GT(estimate->memory_bytes, 100'000);
  EXPECT_GT(estimate->seconds_per_step, 0);
  EXPECT_GT(estimate->seconds, 40 * estimate->seconds_per_step);
  EXPECT_FALSE(std::filesystem::exists(Output("run/checkpoint")));
  ASSERT_TRUE(trainer->Run({}).ok());
  options.output = Output("without");
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ((*TrainingCheckpoint::Read(Output("run/checkpoint"), {}))->values,
            (*TrainingCheckpoint::Read(Output("without/checkpoint"), {}))->values);
}

}  // namespace
}  // namespace tokenbutler
