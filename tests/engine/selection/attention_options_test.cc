#include "engine/selection/attention_options.h"

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AttentionParams Sketch() { return DefaultParams(AttentionPolicy::kSketch); }

AttentionParams Resolve(const AttentionParams& defaults, const AttentionOptions& options) {
  const auto params = ResolveAttention(defaults, options);
  EXPECT_TRUE(params.ok()) << params.status();
  return params.ok() ? *params : AttentionParams();
}

std::string Error(const AttentionOptions& options, const AttentionParams& defaults = Sketch()) {
  const auto params = ResolveAttention(defaults, options);
  EXPECT_EQ(params.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(params.status().message());
}

TEST(AttentionOptionsTest, NothingSetIsTheDefaults) {
  AttentionParams defaults = Sketch();
  defaults.token_budget = 1000;
  defaults.candidates = 2000;
  const AttentionParams params = Resolve(defaults, {});
  EXPECT_EQ(params.policy, AttentionPolicy::kSketch);
  EXPECT_EQ(params.token_budget, 1000);
  EXPECT_EQ(params.candidates, 2000);
  EXPECT_FALSE(AttentionOptions().any());
}

TEST(AttentionOptionsTest, SingleFieldsGoOverPolicyAndSetting) {
  AttentionOptions options;
  options.setting = AttentionSetting::kFast;
  options.policy = AttentionPolicy::kSketch;
  options.scan_fraction = 0.5f;
  options.keys = KeyFormat::kBits4;
  options.query = QuerySource::kLookahead;
  options.token_budget = 900;
  options.sink_tokens = 1;
  options.local_window = 2;
  options.prediction_interval = 3;
  options.candidates = 1000;
  options.neighbours = 4;
  options.top_p = 0.9f;
  options.dense_first_layer = true;
  options.misses = MissRule::kDeferred;
  const AttentionParams params = Resolve(Sketch(), options);
  EXPECT_EQ(params.scan_fraction, 0.5f);
  EXPECT_EQ(params.keys, KeyFormat::kBits4);
  EXPECT_EQ(params.query, QuerySource::kLookahead);
  EXPECT_EQ(params.token_budget, 900);
  EXPECT_EQ(params.sink_tokens, 1);
  EXPECT_EQ(params.local_window, 2);
  EXPECT_EQ(params.prediction_interval, 3);
  EXPECT_EQ(params.candidates, 1000);
  EXPECT_EQ(params.neighbours, 4);
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_TRUE(params.dense_first_layer);
  EXPECT_EQ(params.misses, MissRule::kDeferred);
  EXPECT_TRUE(options.any());
}

TEST(AttentionOptionsTest, SettingsNameAPolicyAndKeepTheNumberOfTokens) {
  AttentionParams defaults = DefaultParams(AttentionPolicy::kExact);
  defaults.token_budget = 777;
  defaults.sink_tokens = 7;
  for (const char* name : {"quality", "fast"}) {
    AttentionOptions options;
    options.setting = *ParseAttentionSetting(name);
    const AttentionParams params = Resolve(defaults, options);
    EXPECT_EQ(params.policy, AttentionPolicy::kSketch) << name;
    EXPECT_EQ(params.token_budget, 777) << name;
    EXPECT_EQ(params.sink_tokens, 7) << name;
    EXPECT_EQ(AttentionSettingName(*options.setting), name);
    const bool is_fast = name == std::string("fast");
    EXPECT_EQ(params.keys, is_fast ? KeyFormat::kBits1 : KeyFormat::kBits2);
    EXPECT_EQ(params.scan_fraction, is_fast ? 0.25f : 1.0f);
    EXPECT_EQ(params.prediction_interval, is_fast ? 4 : 1);
    EXPECT_EQ(params.candidates, 0);
  }
  EXPECT_THAT(std::string(ParseAttentionSetting("slow").status().message()),
              AllOf(HasSubstr("attention.setting"), HasSubstr("slow"), HasSubstr("quality, fast")));
}

// Only a lookahead query needs more candidates than tokens.
TEST(AttentionOptionsTest, EarlyCandidatesGoWithTheirQuery) {
  const AttentionParams staged = DefaultStagedParams();
  EXPECT_TRUE(staged.Validate().ok());
  EXPECT_EQ(staged.policy, AttentionPolicy::kSketch);
  EXPECT_EQ(staged.query, QuerySource::kLookahead);
  EXPECT_EQ(staged.candidates, 6144);
  AttentionOptions options;
  options.keys = KeyFormat::kBits4;
  EXPECT_EQ(Resolve(staged, options).candidates, 6144);
  options.query = QuerySource::kReal;
  EXPECT_EQ(Resolve(staged, options).candidates, 0);
  options.candidates = 5000;
  EXPECT_EQ(Resolve(staged, options).candidates, 5000);
  options = {};
  for (const AttentionPolicy policy : {AttentionPolicy::kExact, AttentionPolicy::kPca,
                                       AttentionPolicy::kRandom, AttentionPolicy::kQuest}) {
    options.policy = policy;
    EXPECT_EQ(Resolve(staged, options).candidates, 0) << PolicyName(policy);
  }
  options = {};
  options.setting = AttentionSetting::kQuality;
  EXPECT_EQ(Resolve(staged, options).candidates, 0);
  EXPECT_EQ(Resolve(staged, options).query, QuerySource::kReal);
}

TEST(AttentionOptionsTest, CandidatesFollowTheBudgetUnlessTheyAreSet) {
  AttentionParams defaults = Sketch();
  defaults.token_budget = 1000;
  defaults.candidates = 1500;
  AttentionOptions options;
  options.token_budget = 3000;
  EXPECT_EQ(Resolve(defaults, options).candidates, 4500);
  options.candidates = 5000;
  EXPECT_EQ(Resolve(defaults, options).candidates, 5000);
  options = {};
  options.token_budget = 1 << 24;
  EXPECT_EQ(Resolve(defaults, options).candidates, 1 << 24) << "no more than there can be";
  options.token_budget = std::numeric_limits<int>::max();
  EXPECT_THAT(Error(options, defaults), HasSubstr("attention.token_budget"));
  options.token_budget = -5;
  EXPECT_THAT(Error(options, defaults), HasSubstr("attention.token_budget is -5"));
}

TEST(AttentionOptionsTest, ASettingOfAnotherPolicyIsRefused) {
  AttentionOptions options;
  options.setting = AttentionSetting::kQuality;
  options.policy = AttentionPolicy::kQuest;
  EXPECT_THAT(Error(options), AllOf(HasSubstr("attention.setting is \"quality\""),
                                    HasSubstr("\"quest\""), HasSubstr("\"sketch\"")));
}

TEST(AttentionOptionsTest, APolicyBringsItsOwnDefaultsAndKeepsWhatBothShare) {
  AttentionParams defaults = Sketch();
  defaults.token_budget = 256;
  defaults.sink_tokens = 8;
  defaults.local_window = 64;
  defaults.candidates = 300;
  defaults.keys = KeyFormat::kBits4;
  defaults.misses = MissRule::kDeferred;
  const auto with = [&](AttentionPolicy policy) {
    AttentionOptions options;
    options.policy = policy;
    return Resolve(defaults, options);
  };
  const AttentionParams exact = with(AttentionPolicy::kExact);
  EXPECT_EQ(exact.token_budget, 256);
  EXPECT_EQ(exact.sink_tokens, 8);
  EXPECT_EQ(exact.local_window, 64);
  EXPECT_EQ(exact.candidates, 300);
  EXPECT_FALSE(exact.keys.has_value()) << "it has no use for them";
  const AttentionParams streaming = with(AttentionPolicy::kStreamingLlm);
  EXPECT_EQ(streaming.token_budget, 256);
  EXPECT_EQ(streaming.sink_tokens, 4);
  EXPECT_EQ(streaming.candidates, 0);
  EXPECT_EQ(streaming.misses, MissRule::kDeferred);
  const AttentionParams butler = with(AttentionPolicy::kTokenButler);
  EXPECT_FALSE(butler.query.has_value());
  EXPECT_FALSE(butler.keys.has_value()) << "sketch's are not its own";
  EXPECT_EQ(butler.sink_tokens, 8);
  EXPECT_EQ(with(AttentionPolicy::kDense).policy, AttentionPolicy::kDense);

  AttentionOptions back;
  back.policy = AttentionPolicy::kSketch;
  back.token_budget = 1000;
  EXPECT_EQ(Resolve(streaming, back).sink_tokens, 128) << "streaming_llm's 4 are its own";
}

// Said once more, option by option.
const std::set<std::string> kScanning = {"tokenbutler", "sketch", "pca", "exact", "random"};

std::map<std::string, std::set<std::string>> Users() {
  std::set<std::string> sparse = kScanning;
  sparse.insert({"quest", "snapkv", "h2o", "streaming_llm", "xkv"});
  std::set<std::string> sink = kScanning;
  sink.insert({"quest", "streaming_llm"});
  std::set<std::string> window = kScanning;
  window.insert({"quest", "snapkv"});
  const std::set<std::string> predicting = {"tokenbutler", "sketch", "pca"};
  return {{"token_budget", sparse},      {"sink_tokens", sink},
          {"local_window", window},      {"prediction_interval", kScanning},
          {"candidates", kScanning},     {"neighbours", kScanning},
          {"top_p", kScanning},          {"query", predicting},
          {"keys", predicting},          {"scan_fraction", predicting},
          {"dense_first_layer", sparse}, {"misses", sparse}};
}

AttentionOptions OptionsWith(const std::string& option) {
  AttentionOptions options;
  if (option == "token_budget") options.token_budget = 5000;
  if (option == "sink_tokens") options.sink_tokens = 5;
  if (option == "local_window") options.local_window = 20;
  if (option == "prediction_interval") options.prediction_interval = 2;
  if (option == "candidates") options.candidates = 0;
  if (option == "neighbours") options.neighbours = 0;
  if (option == "top_p") options.top_p = 1;
  if (option == "query") options.query = QuerySource::kReal;
  if (option == "keys") options.keys = KeyFormat::kBits2;
  if (option == "scan_fraction") options.scan_fraction = 1;
  if (option == "dense_first_layer") options.dense_first_layer = false;
  if (option == "misses") options.misses = MissRule::kOnDemand;
  return options;
}

TEST(AttentionOptionsTest, AnOptionThatThePolicyDoesNotUseIsRefusedNamingThoseThatDo) {
  int refused = 0;
  for (const auto& [option, users] : Users()) {
    for (const char* policy : {"dense", "tokenbutler", "sketch", "pca", "quest", "exact", "snapkv",
                               "h2o", "streaming_llm", "xkv", "random"}) {
      AttentionOptions options = OptionsWith(option);
      options.policy = *ParsePolicy(policy);
      EXPECT_EQ(UsesOption(*options.policy, option), users.count(policy) > 0);
      if (users.count(policy) > 0) {
        EXPECT_TRUE(ResolveAttention(Sketch(), options).ok()) << option << " " << policy;
        continue;
      }
      ++refused;
      EXPECT_THAT(Error(options), AllOf(HasSubstr("attention." + option), HasSubstr(policy),
                                        HasSubstr("does not use"), HasSubstr(*users.begin())));
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_FALSE(UsesOption(AttentionPolicy::kSketch, "no_such_option"));
}

TEST(AttentionOptionsTest, PartialScansNeedLowBitKeys) {
  for (const char* policy : {"tokenbutler", "pca"}) {
    AttentionOptions options;
    options.policy = *ParsePolicy(policy);
    options.scan_fraction = 0.5f;
    EXPECT_THAT(Error(options),
                AllOf(HasSubstr("attention.scan_fraction is 0.5 with projected keys"),
                      HasSubstr("bits1, bits2, bits4")));
    options.keys = KeyFormat::kBits1;
    EXPECT_EQ(Resolve(Sketch(), options).scan_fraction, 0.5f);
    // Another policy's server default is not held against a request that says nothing of it.
    AttentionOptions of_policy;
    of_policy.policy = options.policy;
    EXPECT_EQ(Resolve(WithSetting(AttentionSetting::kFast, Sketch()), of_policy).scan_fraction, 1);
  }
}

TEST(AttentionOptionsTest, BoundsAreChecked) {
  AttentionOptions options;
  options.prediction_interval = 17;
  EXPECT_THAT(Error(options), HasSubstr("attention.prediction_interval is 17, must be in [1, 16]"));
  options = {};
  options.token_budget = 640;
  EXPECT_THAT(Error(options), HasSubstr("attention.token_budget is 640, must be more than"));
  options.token_budget = (1 << 24) + 1;
  EXPECT_THAT(Error(options), HasSubstr("must be in [1, 16777216]"));
}

TEST(FittedTest, OnlyWhatNoTokenNeedsIsLowered) {
  AttentionParams params = Sketch();
  params.token_budget = 4096;
  params.candidates = 30000;
  params.neighbours = 3;
  const AttentionParams same = params.FittedTo(100000, 128);
  EXPECT_EQ(same.token_budget, 4096);
  EXPECT_EQ(same.candidates, 30000);
  EXPECT_EQ(same.neighbours, 3);
  EXPECT_EQ(params.FittedTo(20000, 128).candidates, 20000);

  // Everything is attended to in any case; what is left is what the policies ask for.
  const AttentionParams small = params.FittedTo(256, 128);
  EXPECT_EQ(small.sink_tokens, 128);
  EXPECT_EQ(small.local_window, 256);
  EXPECT_EQ(small.token_budget, 128 + 256 + 1);
  EXPECT_EQ(small.candidates, 385);
  for (const int tokens : {1, 2, 16, 100, 5000, 1 << 20}) {
    for (const int budget : {641, 4096, 1 << 24}) {
      params.token_budget = budget;
      params.candidates = budget;
      const AttentionParams fitted = params.FittedTo(tokens, 16);
      EXPECT_TRUE(fitted.Validate().ok()) << fitted.Validate();
      EXPECT_EQ(fitted.token_budget >= tokens, budget >= tokens) << tokens << " of " << budget;
      if (budget < tokens) {
        EXPECT_EQ(fitted.token_budget, budget);
      }
    }
  }
}

}  // namespace
}  // namespace tokenbutler
