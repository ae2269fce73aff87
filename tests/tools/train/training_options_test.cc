#include "tools/train/training_options.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

TEST(TrainingOptionsTest, NamesTheFieldTheValueAndTheBound) {
  TrainingOptions valid;
  valid.output = "somewhere";
  EXPECT_TRUE(valid.Validate().ok()) << valid.Validate();
  const std::vector<std::pair<std::function<void(TrainingOptions&)>, std::string>> cases = {
      {[](auto& o) { o.student.kind = PredictorKind::kPca; }, "kind is pca"},
      {[](auto& o) { o.student.projected_dim = 6; }, "projected_dim is 6, must be a multiple of 4"},
      {[](auto& o) { o.student.projected_dim = 2; }, "projected_dim is 2, must be in [4, 128]"},
      {[](auto& o) { o.student.layers_per_predictor = 0; }, "layers_per_predictor is 0"},
      {[](auto& o) { o.student.correction_rank = -1; }, "correction_rank is -1"},
      {[](auto& o) {
         o.student.kind = PredictorKind::kTokenButler;
         o.student.correction_rank = 4;
       },
       "correction_rank is 4, must be in [0, 0]"},
      {[](auto& o) {
         o.student.kind = PredictorKind::kTokenButler;
         o.student.hidden_dim = 0;
       },
       "hidden_dim is 0"},
      {[](auto& o) {
         o.student.kind = PredictorKind::kTokenButler;
         o.student.point = LayerPoint::kAfterAttention;
       },
       "point is after_attention, must be input"},
      {[](auto& o) { o.student.keys = TrainedKeys::kFull; }, "correction_rank at least 1, is 0"},
      {[](auto& o) {
         o.student.keys = TrainedKeys::kFull;
         o.student.correction_rank = 4;
       },
       "late is true, must be false"},
      {[](auto& o) { o.num_steps = 0; }, "num_steps is 0"},
      {[](auto& o) { o.sequences_per_step = 0; }, "sequences_per_step is 0"},
      {[](auto& o) { o.rows = 0; }, "rows is 0"},
      {[](auto& o) { o.steps_per_sequence = 0; }, "steps_per_sequence is 0, must be in [1, 64]"},
      {[](auto& o) { o.sequences_per_step = 2; }, "steps_per_sequence is 4, must be in [1, 1]"},
      {[](auto& o) { o.learning_rate = 0; }, "learning_rate is 0"},
      {[](auto& o) { o.learning_rate = std::stof("nan"); }, "learning_rate is nan"},
      {[](auto& o) { o.warmup = 1.5f; }, "warmup is 1.5"},
      {[](auto& o) { o.weight_decay = -1; }, "weight_decay is -1"},
      {[](auto& o) { o.clip_norm = -1; }, "clip_norm is -1"},
      {[](auto& o) { o.sink_tokens = -1; }, "sink_tokens is -1"},
      {[](auto& o) { o.local_window = -1; }, "local_window is -1"},
      {[](auto& o) { o.calibration_sequences = 0; }, "calibration_sequences is 0"},
      {[](auto& o) { o.validate_every = 0; }, "validate_every is 0"},
      {[](auto& o) { o.patience = -1; }, "patience is -1"},
      {[](auto& o) { o.checkpoint_every = 0; }, "checkpoint_every is 0"},
      {[](auto& o) { o.output = ""; }, "output is empty"},
  };
  for (const auto& [change, message] : cases) {
    TrainingOptions options = valid;
    change(options);
    EXPECT_THAT(std::string(options.Validate().message()), HasSubstr(message));
  }
}

// What two runs must share is all but where they are written, and how often.
TEST(TrainingOptionsTest, IdentityIsAllButPlaceAndCheckpoints) {
  TrainingOptions a, b;
  b.output = "elsewhere";
  b.checkpoint_every = 7;
  EXPECT_EQ(a.ToJson(), b.ToJson());
  b.rows = 7;
  EXPECT_NE(a.ToJson(), b.ToJson());
}

}  // namespace
}  // namespace tokenbutler
