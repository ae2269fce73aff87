#include "engine/logprobs.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LogprobsTest, PromptPosition) {
  const std::vector<float> logits = {1, 3, -kInfinity, 2, 3};
  const auto result = ComputeLogprobs(logits, 3, 2);
  ASSERT_TRUE(result.ok());
  const double lse = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  EXPECT_EQ(result->chosen.token_id, 3);
  EXPECT_EQ(result->chosen.rank, 3);
  EXPECT_NEAR(result->chosen.logprob, 2 - lse, 1e-6);
  ASSERT_EQ(result->top.size(), 2u);
  EXPECT_EQ(result->top[0].token_id, 1);
  EXPECT_EQ(result->top[1].token_id, 4);
  EXPECT_NEAR(result->top[1].logprob, 3 - lse, 1e-6);
}

TEST(LogprobsTest, AnImpossibleTokenHasMinusInfinity) {
  const std::vector<float> logits = {1, -kInfinity};
  const auto result = ComputeLogprobs(logits, 1, 0);
  EXPECT_EQ(result->chosen.logprob, -kInfinity);
  EXPECT_TRUE(result->top.empty());
}

TEST(LogprobsTest, SumsLongRowsAccurately) {
  std::vector<float> logits(151936);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = -10 + 0.0001f * static_cast<float>(i % 70001);
    sum += std::exp(static_cast<double>(logits[i]));
  }
  const LogitPeak peak = *FindPeak(logits);
  EXPECT_EQ(peak.token_id, 70000);
  EXPECT_NEAR(LogSumExp(logits, peak.value), std::log(sum), 2e-6);
}

TEST(LogprobsTest, BrokenRows) {
  const std::vector<float> with_nan = {0, std::nanf(""), 1};
  EXPECT_EQ(std::string(ComputeLogprobs(with_nan, 0, 0).status().message()),
            "logits[1] is nan, must be below infinity");
  const std::vector<float> empty_mass(40, -kInfinity);
  EXPECT_EQ(ComputeLogprobs(empty_mass, 0, 0).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace tokenbutler
