#include "engine/models/overrides.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using testing::HasSubstr;
using Scaling = RopeConfig::Scaling;

ModelConfig Plain() {
  ModelConfig config;
  config.max_position = 32768;
  config.rope.theta = 1e6f;
  return config;
}

ModelConfig Apply(ModelConfig config, const ModelOverrides& overrides) {
  const absl::Status status = ApplyOverrides(overrides, &config);
  EXPECT_TRUE(status.ok()) << status;
  return config;
}

void ExpectError(ModelConfig config, const ModelOverrides& overrides, absl::StatusCode code,
                 const std::string& message) {
  const absl::Status status = ApplyOverrides(overrides, &config);
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(OverridesTest, NoneChangesNothing) {
  const ModelConfig config = Apply(Plain(), {});
  EXPECT_EQ(config.max_position, 32768);
  EXPECT_EQ(config.rope.scaling, Scaling::kNone);
}

TEST(OverridesTest, YarnExtendsTheContextAsInVllm) {
  const ModelConfig config =
      Apply(Plain(),
            {.rope_scaling =
                 R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768})"});
  EXPECT_EQ(config.max_position, 131072);
  EXPECT_EQ(config.rope.scaling, Scaling::kYarn);
  EXPECT_EQ(config.rope.factor, 4.0f);
  EXPECT_EQ(config.rope.original_max_position, 32768);
  EXPECT_EQ(config.rope.theta, 1e6f);
}

TEST(OverridesTest, YarnWithoutAnOriginalTakesTheFiles) {
  EXPECT_EQ(Apply(Plain(), {.rope_scaling = R"({"type":"yarn","factor":2})"}).max_position, 65536);
  ModelConfig yarn = Plain();
  yarn.rope.scaling = Scaling::kYarn;
  yarn.rope.factor = 4.0f;
  yarn.rope.original_max_position = 32768;
  yarn.max_position = 131072;
  EXPECT_EQ(Apply(yarn, {.rope_scaling = R"({"rope_type":"yarn","factor":2})"}).max_position,
            65536);
  EXPECT_EQ(Apply(yarn, {.rope_scaling = R"({"rope_type":"default"})"}).max_position, 32768);
}

TEST(OverridesTest, LinearMultiplies) {
  const ModelConfig config =
      Apply(Plain(), {.rope_scaling = R"({"rope_type":"linear","factor":2.5})"});
  EXPECT_EQ(config.max_position, 81920);
  EXPECT_EQ(config.rope.scaling, Scaling::kLinear);
}

TEST(OverridesTest, AScalingReplacesTheFilesFrequencyFactors) {
  ModelConfig config = Plain();
  config.rope.frequency_factors = {1, 2, 4};
  config = Apply(config, {.rope_scaling = R"({"rope_type":"yarn","factor":2})"});
  EXPECT_TRUE(config.rope.frequency_factors.empty());
}

TEST(OverridesTest, MaxModelLenIsBoundedByTheEffectiveContext) {
  EXPECT_EQ(Apply(Plain(), {.max_model_len = 4096}).max_position, 4096);
  ExpectError(Plain(), {.max_model_len = 32769}, absl::StatusCode::kInvalidArgument,
              "--max-model-len is 32769, must be from 1 to the model's context of 32768");
  ExpectError(Plain(), {.max_model_len = -1}, absl::StatusCode::kInvalidArgument,
              "--max-model-len is -1");
  const ModelConfig config = Apply(
      Plain(), {.max_model_len = 100000, .rope_scaling = R"({"rope_type":"yarn","factor":4})"});
  EXPECT_EQ(config.max_position, 100000);
  EXPECT_EQ(config.rope.original_max_position, 32768);  // what yarn's ramp is computed from
}

TEST(OverridesTest, BadScalingsNameTheFlag) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(Plain(), {.rope_scaling = "yarn"}, kInvalid, "--rope-scaling is not JSON");
  ExpectError(Plain(), {.rope_scaling = "[]"}, kInvalid, "--rope-scaling is a JSON array");
  ExpectError(Plain(), {.rope_scaling = "{}"}, kInvalid, "--rope-scaling has no rope_type");
  ExpectError(Plain(), {.rope_scaling = R"({"rope_type":"yarn","factor":0})"}, kInvalid,
              "--rope-scaling: factor is 0");
  ModelConfig config = Plain();
  EXPECT_EQ(ApplyOverrides({.rope_scaling = R"({"rope_type":5})"}, &config).message(),
            "--rope-scaling: rope_type is a number, wanted a string");
  ExpectError(Plain(), {.rope_scaling = R"({"rope_type":"yarn","factor":65536})"}, kInvalid,
              "extends the context");
  ExpectError(Plain(), {.rope_scaling = R"({"rope_type":"dynamic","factor":2})"},
              absl::StatusCode::kUnimplemented, "rope_type is 'dynamic'");
}

}  // namespace
}  // namespace tokenbutler
