#include "bench/decode_cases.h"

#include <set>
#include <string>
#include <vector>

#include "engine/selection/attention_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

TEST(DecodeCasesTest, EachCaseComesOnceShallowOnesFirst) {
  DecodeOptions options;
  const std::vector<DecodeSweep> sweeps = {{"depth", {"dense", "exact"}, {256, 512}, {4096, 1024}},
                                           {"policy", {"exact", "random"}, {512}, {4096}}};
  std::vector<std::string> cases;
  const auto all = DecodeCasesOf(sweeps, options);
  ASSERT_TRUE(all.ok()) << all.status();
  for (const DecodeCase& c : *all) {
    cases.push_back(fmt::format("{} {} {}", c.depth, c.setting.label,
                                c.params.sparse() ? c.params.token_budget : 0));
  }
  EXPECT_THAT(cases, ElementsAre("1024 dense 0", "1024 exact 256", "1024 exact 512", "4096 dense 0",
                                 "4096 exact 256", "4096 exact 512", "4096 random 512"));
}

// The sweeps that the page promises.
TEST(DecodeCasesTest, ThePageShowsEveryPolicyAndEverySweep) {
  DecodeOptions options;
  options.depths = {4096, 8192};
  options.policy_depths = {8192, 16384};
  const auto all = DecodeCasesOf(PageSweeps(options), options);
  ASSERT_TRUE(all.ok()) << all.status();
  std::set<std::string> shallow, policies;
  std::set<int> intervals, budgets, candidates;
  for (const DecodeCase& c : *all) {
    if (c.depth == 4096) shallow.insert(c.setting.label);
    if (c.depth != 16384) continue;
    policies.insert(c.setting.label);
    if (c.params.token_budget == 4096) intervals.insert(c.params.prediction_interval);
    if (c.setting.label == "fast") budgets.insert(c.params.token_budget);
    if (c.params.prediction_interval == 4 && c.params.candidates > 0) {
      candidates.insert(c.params.candidates / 4096);
    }
  }
  EXPECT_THAT(shallow, ElementsAre("dense", "fast", "quality"));
  for (const std::string& setting : AllSettings()) EXPECT_EQ(policies.count(setting), 1) << setting;
  EXPECT_THAT(intervals, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(budgets, ElementsAre(1024, 2048, 4096, 8192, 16384));
  EXPECT_THAT(candidates, ElementsAre(1, 2, 4, 8));
}

// A row of an earlier program is taken up only if its setting did the same.
TEST(DecodeCasesTest, KeysTellWhatASettingDoes) {
  DecodeCase before, now;
  before.setting.label = now.setting.label = "fast";
  before.params = now.params = WithSetting(AttentionSetting::kFast, AttentionParams());
  EXPECT_EQ(before.Key(), now.Key());
  before.params.prediction_interval *= 2;
  EXPECT_NE(before.Key(), now.Key());
  before = now;
  before.params.scan_fraction /= 2;
  EXPECT_NE(before.Key(), now.Key());
}

TEST(DecodeCasesTest, StepsAreWholeIntervals) {
  DecodeOptions options;
  options.steps = 8;
  options.repeats = 3;
  DecodeCase c;
  c.params.prediction_interval = 5;
  EXPECT_EQ(c.StepsPerRepeat(8), 10);
  EXPECT_EQ(c.NumSteps(options), 5 + 3 * 10 + 2 * 10);
}

}  // namespace
}  // namespace tokenbutler
