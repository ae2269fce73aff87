#include "engine/models/rope.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

RopeConfig ConfigOf(const nlohmann::json& golden) {
  RopeConfig rope;
  rope.theta = golden["rope_theta"];
  const nlohmann::json& scaling = golden["rope_scaling"];
  if (scaling.is_null()) return rope;
  const std::string type = scaling["rope_type"];
  rope.scaling = type == "linear"   ? RopeConfig::Scaling::kLinear
                 : type == "llama3" ? RopeConfig::Scaling::kLlama3
                                    : RopeConfig::Scaling::kYarn;
  rope.factor = scaling["factor"];
  rope.original_max_position = scaling.value("original_max_position_embeddings", 0);
  rope.low_freq_factor = scaling.value("low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = scaling.value("high_freq_factor", rope.high_freq_factor);
  rope.beta_fast = scaling.value("beta_fast", rope.beta_fast);
  rope.beta_slow = scaling.value("beta_slow", rope.beta_slow);
  rope.truncate = scaling.value("truncate", true);
  if (scaling.contains("attention_factor")) rope.attention_factor = scaling["attention_factor"];
  if (scaling.contains("mscale")) rope.mscale = scaling["mscale"];
  if (scaling.contains("mscale_all_dim")) rope.mscale_all_dim = scaling["mscale_all_dim"];
  return rope;
}

TEST(RopeTest, EqualsTransformers) {
  std::ifstream file(TOKENBUTLER_TEST_DATA "/goldens/rope.json");
  const nlohmann::json goldens = nlohmann::json::parse(file);
  ASSERT_GE(goldens.size(), 14);
  for (const nlohmann::json& golden : goldens) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const absl::StatusOr<Rope> rope =
        Rope::Create(ConfigOf(golden), golden["head_dim"], golden["max_position"]);
    ASSERT_TRUE(rope.ok()) << rope.status();
    EXPECT_FLOAT_EQ(rope->attention_factor(), golden["attention_factor"].get<float>());
    const std::vector<double> expected = golden["inverse_frequencies"];
    ASSERT_EQ(rope->half_dim(), expected.size());
    for (int i = 0; i < rope->half_dim(); ++i) {
      // The reference computes in float32: a few units in the last place.
      EXPECT_NEAR(rope->inverse_frequencies()[i] / expected[i], 1.0, 1e-6) << "pair " << i;
    }
  }
}

TEST(RopeTest, RotationIsCosineAndSineTimesAttentionFactor) {
  RopeConfig config;
  config.scaling = RopeConfig::Scaling::kYarn;
  config.factor = 4;
  config.attention_factor = 1.5f;
  const Rope rope = Rope::Create(config, 8, 4096).value();
  std::vector<float> cos(4), sin(4);
  rope.Rotation(0, cos.data(), sin.data());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(cos[i], 1.5f);
    EXPECT_EQ(sin[i], 0.0f);
  }
  rope.Rotation(777, cos.data(), sin.data());
  for (int i = 0; i < 4; ++i) {
    const double angle = 777.0 * rope.inverse_frequencies()[i];
    EXPECT_NEAR(cos[i], 1.5 * std::cos(angle), 1e-4);
    EXPECT_NEAR(sin[i], 1.5 * std::sin(angle), 1e-4);
  }
}

// Files converted to GGUF carry Llama 3.1's scaling as factors; both ways give the same
// frequencies.
TEST(RopeTest, FrequencyFactorsDivide) {
  RopeConfig llama3;
  llama3.theta = 500000;
  llama3.scaling = RopeConfig::Scaling::kLlama3;
  llama3.factor = 8;
  llama3.original_max_position = 8192;
  const Rope scaled = Rope::Create(llama3, 128, 131072).value();
  RopeConfig plain;
  plain.theta = 500000;
  const Rope unscaled = Rope::Create(plain, 128, 131072).value();
  for (int i = 0; i < 64; ++i) {
    plain.frequency_factors.push_back(unscaled.inverse_frequencies()[i] /
                                      scaled.inverse_frequencies()[i]);
  }
  EXPECT_FLOAT_EQ(plain.frequency_factors[0], 1);
  EXPECT_FLOAT_EQ(plain.frequency_factors[63], 8);
  const Rope divided = Rope::Create(plain, 128, 131072).value();
  for (int i = 0; i < 64; ++i) {
    EXPECT_NEAR(divided.inverse_frequencies()[i] / scaled.inverse_frequencies()[i], 1, 1e-6);
  }
}

TEST(RopeTest, RefusesNonsense) {
  struct Case {
    const char* field;
    void (*damage)(RopeConfig&);
  };
  const Case cases[] = {
      {"rope_theta", [](RopeConfig& r) { r.theta = 0; }},
      {"rope_theta", [](RopeConfig& r) { r.theta = std::numeric_limits<float>::quiet_NaN(); }},
      {"factor", [](RopeConfig& r) { r.factor = 0; }},
      {"factor", [](RopeConfig& r) { r.factor = std::numeric_limits<float>::infinity(); }},
      {"beta_fast", [](RopeConfig& r) { r.beta_fast = -1; }},
      {"attention_factor", [](RopeConfig& r) { r.attention_factor = -1.0f; }},
      {"frequency factors are 3",
       [](RopeConfig& r) {
         r.frequency_factors = {1, 1, 1};
       }},
      {"frequency factor is 0",
       [](RopeConfig& r) {
         r.frequency_factors = {1, 1, 0, 1};
       }},
      {"high_freq_factor",
       [](RopeConfig& r) {
         r.scaling = RopeConfig::Scaling::kLlama3;
         r.high_freq_factor = r.low_freq_factor;
       }},
  };
  for (const Case& c : cases) {
    RopeConfig config;
    config.scaling = RopeConfig::Scaling::kYarn;
    config.factor = 2;
    ASSERT_TRUE(Rope::Create(config, 8, 4096).ok());
    c.damage(config);
    const absl::StatusOr<Rope> rope = Rope::Create(config, 8, 4096);
    EXPECT_EQ(rope.status().code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(rope.status().message()), HasSubstr(c.field));
  }
  EXPECT_THAT(std::string(Rope::Create({}, 7, 4096).status().message()),
              HasSubstr("head_dim is 7"));
}

}  // namespace
}  // namespace tokenbutler
