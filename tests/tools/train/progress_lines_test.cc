#include "tools/train/progress_lines.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const absl::Time kStart = absl::FromUnixSeconds(1'900'000'000);

TrainingEvent Step(int64_t step) {
  TrainingEvent event;
  event.step = step;
  event.loss = 0.5f;
  event.learning_rate = 1e-3f;
  return event;
}

TEST(ProgressLinesTest, DurationsHaveTwoUnits) {
  EXPECT_EQ(DurationText(0.4), "0 s");
  EXPECT_EQ(DurationText(59.4), "59 s");
  EXPECT_EQ(DurationText(59.6), "1 min 00 s");
  EXPECT_EQ(DurationText(725), "12 min 05 s");
  EXPECT_EQ(DurationText(3 * 3600 + 7 * 60), "3 h 07 min");
  EXPECT_EQ(DurationText(2 * 86400 + 4 * 3600), "2 d 04 h");
  EXPECT_EQ(DurationText(-1), "0 s");
}

TEST(ProgressLinesTest, ATerminalShowsEveryStepInOneLine) {
  ProgressLines lines(100, 10, /*is_terminal=*/true);
  EXPECT_EQ(lines.For(Step(11), kStart),
            "\r\x1b[Kstep 11 of 100: loss 0.5000, learning rate 0.001");
  // Two steps in four seconds; the other 87 will take as long each.
  EXPECT_EQ(lines.For(Step(13), kStart + absl::Seconds(4)),
            "\r\x1b[Kstep 13 of 100: loss 0.5000, learning rate 0.001, 2.00 s a step, 2 min 54 s "
            "left");
  EXPECT_THAT(lines.For(Step(100), kStart + absl::Seconds(5)), testing::EndsWith("0 s left\n"));
}

TEST(ProgressLinesTest, ElsewhereALineNowAndThen) {
  ProgressLines lines(100, 0, /*is_terminal=*/false);
  EXPECT_THAT(lines.For(Step(1), kStart), StartsWith("step 1 of 100"));
  EXPECT_EQ(lines.For(Step(2), kStart + absl::Seconds(29)), "");
  EXPECT_THAT(lines.For(Step(3), kStart + absl::Seconds(31)), testing::EndsWith("left\n"));
  EXPECT_EQ(lines.For(Step(4), kStart + absl::Seconds(32)), "");
  EXPECT_THAT(lines.For(Step(100), kStart + absl::Seconds(33)), StartsWith("step 100 of 100"));
}

TEST(ProgressLinesTest, ValidationsSayTheMeanAndTheWorstLayer) {
  ProgressLines lines(100, 0, /*is_terminal=*/false);
  TrainingEvent event;
  event.kind = TrainingEvent::Kind::kValidation;
  event.loss = 0.25f;
  event.is_best = true;
  event.layers = {{.layer = 0, .early = std::nullopt, .late = 0.5f},
                  {.layer = 1, .early = 0.1f, .late = 0.25f},
                  {.layer = 2, .early = 0.3f, .late = 0.0f}};
  EXPECT_EQ(lines.For(event, kStart),
            "step 0: validation 0.2500 nats, early 0.2000 (layer 2: 0.3000), late 0.2500 (layer 0: "
            "0.5000)\n");
  event.step = 50;
  for (LayerKl& layer : event.layers) layer.late.reset();
  EXPECT_EQ(lines.For(event, kStart),
            "step 50: validation 0.2500 nats, early 0.2000 (layer 2: 0.3000), the best so far\n");
  event.is_best = false;
  EXPECT_THAT(lines.For(event, kStart), Not(HasSubstr("best")));
}

TEST(ProgressLinesTest, EstimatesAndResultsSayTheirNumbers) {
  const std::string estimate = EstimateText({.num_parameters = 645120,
                                             .num_model_parameters = 134515008,
                                             .memory_bytes = 78 << 20,
                                             .seconds_per_step = 1.25,
                                             .seconds = 725});
  EXPECT_THAT(estimate, HasSubstr("645120 (0.48 % of the model's 134515008)"));
  EXPECT_THAT(estimate, HasSubstr("78 MiB"));
  EXPECT_THAT(estimate, HasSubstr("1.25 s a step, 12 min 05 s in all"));
  TrainingResult result;
  result.steps = 70;
  result.best_step = 50;
  result.first_loss = 1.5f;
  result.best_loss = 0.5f;
  EXPECT_THAT(ResultText(result, "out"), HasSubstr("Stopped after step 70. The same command"));
  EXPECT_THAT(ResultText(result, "out"), HasSubstr("of step 50 (0.5000 nats), is out/predictor"));
  result.is_finished = true;
  EXPECT_THAT(ResultText(result, "out"), StartsWith("Done after 70 steps"));
  result.stopped_early = true;
  EXPECT_THAT(ResultText(result, "out"), StartsWith("Nothing got better any more"));
}

}  // namespace
}  // namespace tokenbutler
