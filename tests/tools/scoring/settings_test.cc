#include "tools/scoring/settings.h"

#include <string>
#include <vector>

#include "engine/selection/attention_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Labels(const std::vector<std::string>& texts, const Sweep& sweep) {
  const auto settings = ParseSettings(texts, sweep);
  EXPECT_TRUE(settings.ok()) << settings.status();
  std::vector<std::string> labels;
  for (const Setting& setting : *settings) labels.push_back(setting.label);
  return labels;
}

TEST(SettingsTest, AllThatThereIsCanBeParsed) {
  for (const std::string& text : AllSettings()) {
    EXPECT_TRUE(ParseSetting(text).ok()) << ParseSetting(text).status();
  }
  EXPECT_GE(AllSettings().size(), 13u);
}

TEST(SettingsTest, OptionsEndUpInTheParameters) {
  const auto setting = ParseSetting(
      "sketch:interval=16,candidates=1/8,scan=0.25,keys=bits4,query=lookahead,neighbours=2,"
      "top_p=0.9,dense_first_layer=1,misses=deferred,sink=7,local=9");
  ASSERT_TRUE(setting.ok()) << setting.status();
  const AttentionParams params = setting->At({.context_len = 80000, .token_budget = 1000});
  EXPECT_EQ(params.policy, AttentionPolicy::kSketch);
  EXPECT_EQ(params.prediction_interval, 16);
  EXPECT_EQ(params.candidates, 10000);
  EXPECT_EQ(params.scan_fraction, 0.25f);
  EXPECT_EQ(params.keys, KeyFormat::kBits4);
  EXPECT_EQ(params.query, QuerySource::kLookahead);
  EXPECT_EQ(params.neighbours, 2);
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_TRUE(params.dense_first_layer);
  EXPECT_EQ(params.misses, MissRule::kDeferred);
  EXPECT_EQ(params.sink_tokens, 7);
  EXPECT_EQ(params.local_window, 9);
  EXPECT_EQ(params.token_budget, 1000);
}

TEST(SettingsTest, CandidatesHoldTheBudgetAtLeast) {
  const TokenCounts counts{.context_len = 8000, .token_budget = 3000};
  EXPECT_EQ(ParseSetting("exact:candidates=1/8")->At(counts).candidates, 3000);
  EXPECT_EQ(ParseSetting("exact:candidates=5000")->At(counts).candidates, 5000);
  EXPECT_EQ(ParseSetting("exact:candidates=2.5x")->At(counts).candidates, 7500);
  EXPECT_FALSE(ParseSetting("exact:candidates=0.5x").ok());
  EXPECT_EQ(ParseSetting("exact")->At(counts).candidates, 0);
}

TEST(SettingsTest, PoliciesWithAWindowOfTheirOwnKeepIt) {
  const TokenCounts counts{.context_len = 8000, .sink_tokens = 32, .local_window = 128};
  EXPECT_EQ(ParseSetting("exact")->At(counts).sink_tokens, 32);
  EXPECT_EQ(ParseSetting("exact")->At(counts).local_window, 128);
  EXPECT_EQ(ParseSetting("streaming_llm")->At(counts).sink_tokens, 4);
  EXPECT_EQ(ParseSetting("snapkv")->At(counts).local_window, 32);
}

TEST(SettingsTest, NamedSettingsAreThoseOfRequestsAndCanBeChanged) {
  for (const AttentionSetting named : kAttentionSettings) {
    const std::string name(AttentionSettingName(named));
    AttentionParams meant = WithSetting(named, AttentionParams());
    EXPECT_EQ(ParseSetting(name)->At({.context_len = 9000}), meant) << name;
    meant.prediction_interval = 5;
    EXPECT_EQ(ParseSetting(name + ":interval=5")->At({.context_len = 9000}), meant) << name;
  }
}

TEST(SettingsTest, AColonAnnouncesOptions) {
  EXPECT_EQ(ParseSetting("exact:")->params.policy, AttentionPolicy::kExact);
  EXPECT_EQ(ParseSetting("exact:interval=3")->params.prediction_interval, 3);
}

TEST(SettingsTest, SweepsRepeatOnlyWhatScansAndIsNotFixed) {
  EXPECT_THAT(Labels({"dense", "fast", "sketch:interval=2", "random", "exact"},
                     {.intervals = {"1", "8"}, .candidates = {"1/8"}}),
              ElementsAre("dense", "fast", "sketch:interval=2,candidates=1/8", "random",
                          "exact:interval=1,candidates=1/8", "exact:interval=8,candidates=1/8"));
  EXPECT_THAT(Labels({"exact", "exact"}, {}), ElementsAre("exact"));
}

// Rows of a named setting are taken up again only while it stands for the same.
TEST(SettingsTest, NamedSettingsSayWhatTheyStandFor) {
  EXPECT_EQ(ParseSetting("quality")->meaning, "sketch:keys=bits2,scan=1,interval=1");
  EXPECT_EQ(ParseSetting("fast:misses=deferred")->meaning,
            "sketch:keys=bits1,scan=0.25,interval=4");
  EXPECT_EQ(ParseSetting("sketch:keys=bits1")->meaning, "");

  const SettingOptions choice = {.settings = {"fast", "sketch"}, .token_budgets = {64}};
  const std::vector<TextJob> jobs = *TextJobsOf(choice, /*context_len=*/256);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].Key(),
            (Checkpoint::Json{{"setting", "fast"},
                              {"token_budget", 64},
                              {"meaning", "sketch:keys=bits1,scan=0.25,interval=4"}}));
  EXPECT_EQ(jobs[1].Key(), (Checkpoint::Json{{"setting", "sketch"}, {"token_budget", 64}}));
}

TEST(SettingsTest, MistakesAreNamed) {
  const auto message = [](const char* text) {
    return std::string(ParseSetting(text).status().message());
  };
  EXPECT_THAT(message("sketchy"), HasSubstr("attention.policy is \"sketchy\""));
  EXPECT_THAT(message("sketch:intervall=2"), HasSubstr("\"intervall\" is unknown"));
  EXPECT_THAT(message("sketch:interval"), HasSubstr("no OPTION=VALUE"));
  EXPECT_THAT(message("sketch:interval=two"), HasSubstr("interval is \"two\""));
  EXPECT_THAT(message("sketch:candidates=9/8"), HasSubstr("must be a share in (0, 1]"));
  EXPECT_THAT(message("sketch:scan=1/0"), HasSubstr("must be a share"));
  EXPECT_THAT(message("sketch:keys=bits3"), HasSubstr("bits3"));
}

}  // namespace
}  // namespace tokenbutler
