#include "tools/scoring/divergence.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

std::vector<float> Logits(const std::vector<double>& probabilities, float shift) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + shift);
  return logits;
}

TEST(DivergenceTest, IsThatOfKnownDistributions) {
  const ReferenceDistribution p(Logits({0.5, 0.25, 0.25}, 3));
  EXPECT_NEAR(p.KlDivergence(Logits({0.5, 0.25, 0.25}, -70)), 0, 1e-6);
  // 0.5 ln 2 + 0.25 ln 0.5 + 0.25 ln 1 = 0.25 ln 2
  EXPECT_NEAR(p.KlDivergence(Logits({0.25, 0.5, 0.25}, 5)), 0.25 * std::log(2), 1e-6);
  // 0.5 ln 0.5 + 0.25 ln 2 + 0.25 ln (0.25 / 0.0...) is not symmetric:
  const ReferenceDistribution q(Logits({0.8, 0.1, 0.1}, 0));
  const double there = p.KlDivergence(Logits({0.8, 0.1, 0.1}, 0));
  const double back = q.KlDivergence(Logits({0.5, 0.25, 0.25}, 0));
  EXPECT_NEAR(there, 0.5 * std::log(0.5 / 0.8) + 0.5 * std::log(2.5), 1e-6);
  EXPECT_NEAR(back, 0.8 * std::log(1.6) + 0.2 * std::log(0.4), 1e-6);
}

TEST(DivergenceTest, NeitherOverflowsNorTurnsNegative) {
  const ReferenceDistribution p({-3e4f, 3e4f, 0});
  EXPECT_NEAR(p.KlDivergence({-3e4f, 3e4f, 0}), 0, 1e-12);
  EXPECT_NEAR(p.KlDivergence({3e4f, -3e4f, 0}), 6e4, 1);
  const std::vector<float> nearly = {1, 1.0000001f, 0.9999999f};
  EXPECT_GE(ReferenceDistribution({1, 1, 1}).KlDivergence(nearly), 0);
}

TEST(DivergenceTest, TopTokenIsTheFirstOfEquals) {
  EXPECT_EQ(ReferenceDistribution({1, 3, 3, 2}).top_token(), 1);
  EXPECT_EQ(TopToken({5, 3, 7}), 2);
}

TEST(DivergenceTest, NegativeLogLikelihoodIsThatOfTheToken) {
  const std::vector<float> logits = Logits({0.5, 0.25, 0.25}, 9);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 0), std::log(2), 1e-6);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 2), std::log(4), 1e-6);
}

}  // namespace
}  // namespace tokenbutler
