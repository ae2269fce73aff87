#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/logprobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling_reference.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int vocab_size, uint64_t seed, float spread = 3) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab_size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

Sampler MakeSampler(const SamplingParams& params, int vocab_size, uint64_t seed = 1,
                    const std::vector<int32_t>& prompt = {}, std::vector<int32_t> stops = {},
                    std::optional<int> top_logprobs = std::nullopt) {
  SamplerOptions options;
  options.params = params;
  options.seed = seed;
  options.vocab_size = vocab_size;
  options.stop_token_ids = std::move(stops);
  options.top_logprobs = top_logprobs;
  return Sampler::Create(options, prompt).value();
}

// The p-value's normal approximation (Wilson-Hilferty) of Pearson's statistic, as a z-score.
double ChiSquareZ(const std::vector<double>& probabilities, const std::vector<int>& counts) {
  double total = 0;
  for (int count : counts) total += count;
  double statistic = 0, pooled_expected = 0, pooled_count = 0;
  int bins = 0;
  const auto add = [&](double expected, double count) {
    statistic += (count - expected) * (count - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * total;
    if (expected >= 5) {
      add(expected, counts[i]);
    } else {
      pooled_expected += expected;
      pooled_count += counts[i];
    }
  }
  if (pooled_expected > 0) add(pooled_expected, pooled_count);
  const double degrees = bins - 1;
  if (degrees < 1) return 0;
  const double spread = 2 / (9 * degrees);
  return (std::cbrt(statistic / degrees) - (1 - spread)) / std::sqrt(spread);
}

// Draws from the same logits by many sequences (index 0..) and compares with the reference.
void ExpectDistribution(const SamplingParams& params, const std::vector<float>& logits,
                        const std::vector<int32_t>& prompt = {}, int draws = 20000) {
  const std::vector<double> expected = ReferenceDistribution(logits, params, prompt, {});
  std::vector<int> counts(logits.size());
  SamplingScratch scratch;
  for (int i = 0; i < draws; ++i) {
    Sampler sampler = MakeSampler(params, logits.size(), 1000 + i, prompt);
    std::vector<float> row = logits;
    const int32_t token = sampler.Sample(absl::MakeSpan(row), &scratch)->token_id;
    ASSERT_GT(expected[token], 0) << "token " << token << " should have been dropped";
    ++counts[token];
  }
  EXPECT_LT(ChiSquareZ(expected, counts), 4);
  // Nothing that may be drawn is lost: every likely token was seen.
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] * draws > 20) {
      EXPECT_GT(counts[i], 0) << i;
    }
  }
}

TEST(SamplerTest, TemperatureZeroTakesTheLargestLogit) {
  SamplingParams params;
  params.temperature = 0;
  params.top_k = 3;
  SamplingScratch scratch;
  for (int vocab_size : {1, 2, 15, 16, 17, 511, 512, 513, 5000}) {
    for (int seed = 0; seed < 20; ++seed) {
      std::vector<float> logits = RandomLogits(vocab_size, seed);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      Sampler sampler = MakeSampler(params, vocab_size, seed);
      EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id, best);
    }
  }
}

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEquals) {
  SamplingParams params;
  params.temperature = 0;
  std::vector<float> logits(3000, 1.0f);
  logits[700] = logits[1400] = logits[2900] = 2.0f;
  SamplingScratch scratch;
  Sampler sampler = MakeSampler(params, 3000);
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id, 700);
}

TEST(SamplerTest, TinyTemperatureIsGreedy) {
  SamplingParams params;
  params.temperature = 1e-30f;
  std::vector<float> logits = {0, 1, 2, 1.999f};
  SamplingScratch scratch;
  Sampler sampler = MakeSampler(params, 4);
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id, 2);
}

TEST(SamplerTest, PlainSamplingFollowsSoftmax) { ExpectDistribution({}, RandomLogits(300, 1, 2)); }

TEST(SamplerTest, TemperatureScales) {
  for (float temperature : {0.3f, 0.7f, 1.5f, 20.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    ExpectDistribution(params, RandomLogits(100, 2));
  }
}

TEST(SamplerTest, TopKKeepsTheBestK) {
  for (int top_k : {1, 2, 40, 99, 100, 1000}) {
    SamplingParams params;
    params.top_k = top_k;
    ExpectDistribution(params, RandomLogits(100, 3));
  }
}

TEST(SamplerTest, LargeTopKGoesThroughSelection) {
  SamplingParams params;
  params.top_k = 700;
  ExpectDistribution(params, RandomLogits(1000, 4, 1), {}, 60000);
}

TEST(SamplerTest, TopKKeepsEqualsOfTheKth) {
  SamplingParams params;
  params.top_k = 2;
  ExpectDistribution(params, {1, 3, 2, 2, 2, -1});
}

TEST(SamplerTest, TopPKeepsTheNucleus) {
  for (float top_p : {0.01f, 0.5f, 0.9f, 0.99f}) {
    SamplingParams params;
    params.top_p = top_p;
    ExpectDistribution(params, RandomLogits(200, 5));
  }
}

TEST(SamplerTest, TopPOfAFlatDistributionKeepsManyPieces) {
  SamplingParams params;
  params.top_p = 0.8f;
  ExpectDistribution(params, RandomLogits(2000, 6, 0.2f), {}, 60000);
}

TEST(SamplerTest, MinPDropsUnlikely) {
  for (float min_p : {0.02f, 0.3f, 1.0f}) {
    SamplingParams params;
    params.min_p = min_p;
    params.temperature = 1.3f;
    ExpectDistribution(params, RandomLogits(200, 7));
  }
}

TEST(SamplerTest, TypicalKeepsExpectedInformation) {
  for (float typical_p : {0.1f, 0.5f, 0.95f}) {
    SamplingParams params;
    params.typical_p = typical_p;
    ExpectDistribution(params, RandomLogits(200, 8, 2));
  }
}

TEST(SamplerTest, PenaltiesAndBiasMoveTheDistribution) {
  SamplingParams params;
  params.repetition_penalty = 1.7f;
  params.logit_bias = {{5, 3.0f}, {6, -100.0f}, {7, 1.5f}};
  ExpectDistribution(params, RandomLogits(50, 9, 2), {1, 1, 2, 3, 7});
}

TEST(SamplerTest, EveryFilterTogether) {
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::vector<double> values) { return values[random() % values.size()]; };
    SamplingParams params;
    params.temperature = pick({0.5, 1, 1.8});
    params.min_p = pick({0, 0.01, 0.05});
    params.top_k = pick({0, 20, 60});
    params.top_p = pick({1, 0.95, 0.7});
    params.typical_p = pick({1, 0.9, 0.6});
    params.repetition_penalty = pick({1, 0.8, 1.3});
    params.logit_bias = {{3, 1.0f}};
    ExpectDistribution(params, RandomLogits(120, 100 + seed, 2), {3, 4, 5}, 8000);
  }
}

// Masks, exactly: with u close to every value in [0, 1) all kept tokens are reachable, so the set
// of tokens drawn from near-equal weights is the kept set.
TEST(SamplerTest, KeptSetsAreExact) {
  for (int seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    SamplingParams params;
    params.top_k = random() % 2 ? 1 + random() % 12 : 0;
    params.top_p = random() % 2 ? 0.35f + 0.001f * (random() % 500) : 1.0f;
    params.typical_p = random() % 2 ? 0.4f + 0.001f * (random() % 500) : 1.0f;
    params.min_p = random() % 2 ? 0.001f * (random() % 800) : 0.0f;
    const std::vector<float> logits = RandomLogits(16, seed, 0.4f);
    const std::vector<double> expected = ReferenceDistribution(logits, params, {}, {});
    std::set<int> kept, drawn;
    for (int i = 0; i < 16; ++i) {
      if (expected[i] > 0) kept.insert(i);
    }
    SamplingScratch scratch;
    for (int i = 0; i < 3000; ++i) {
      std::vector<float> row = logits;
      const double uniform = (i + 0.5) / 3000;
      drawn.insert(DrawToken(absl::MakeSpan(row), *std::max_element(row.begin(), row.end()), params,
                             uniform, &scratch));
    }
    EXPECT_EQ(drawn, kept) << "case " << seed;
  }
}

TEST(SamplerTest, PenaltiesFollowTheGrowingOutput) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 1.2f;
  params.presence_penalty = 0.4f;
  params.frequency_penalty = 0.3f;
  params.logit_bias = {{2, 0.25f}};
  const std::vector<int32_t> prompt = {9, 10, 11};
  const int vocab_size = 130;
  Sampler sampler = MakeSampler(params, vocab_size, 1, prompt);
  SamplingScratch scratch;
  std::vector<int32_t> output;
  for (int step = 0; step < 200; ++step) {
    std::vector<float> logits = RandomLogits(vocab_size, step / 20);  // the same for a while
    const std::vector<double> edited = ReferenceEdits(logits, params, prompt, output);
    const auto best = std::max_element(edited.begin(), edited.end()) - edited.begin();
    const int32_t token = sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id;
    ASSERT_EQ(token, best) << "step " << step;
    for (int i = 0; i < vocab_size; ++i) ASSERT_NEAR(logits[i], edited[i], 1e-5);
    output.push_back(token);
  }
  EXPECT_GT(std::set<int32_t>(output.begin(), output.end()).size(), 20u);
}

TEST(SamplerTest, PresenceAndFrequencyIgnoreThePrompt) {
  SamplingParams params;
  params.temperature = 0;
  params.presence_penalty = 2;
  params.frequency_penalty = 2;
  std::vector<float> logits = {0, 1, 0.5f};
  SamplingScratch scratch;
  Sampler sampler = MakeSampler(params, 3, 1, {1, 1, 1});
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id, 1);
  EXPECT_EQ(logits, (std::vector<float>{0, 1, 0.5f}));
}

TEST(SamplerTest, MinTokensSuppressesStops) {
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens = 3;
  params.logit_bias = {{4, 50.0f}};
  SamplingScratch scratch;
  Sampler sampler = MakeSampler(params, 6, 1, {}, {4, 5});
  std::vector<int32_t> output;
  for (int i = 0; i < 5; ++i) {
    std::vector<float> logits = {0, 1, 2, 3, 4, 5};
    output.push_back(sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id);
  }
  EXPECT_EQ(output, (std::vector<int32_t>{3, 3, 3, 4, 4}));
}

TEST(SamplerTest, MinTokensThatLeaveNothingIsAnError) {
  SamplingParams params;
  params.min_tokens = 1;
  SamplingScratch scratch;
  Sampler sampler = MakeSampler(params, 2, 1, {}, {0, 1});
  std::vector<float> logits = {0, 1};
  const auto result = sampler.Sample(absl::MakeSpan(logits), &scratch);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("min_tokens is 1"));
}

TEST(SamplerTest, SameSeedSameTokensWhateverElseRuns) {
  SamplingParams params;
  params.top_p = 0.95f;
  const auto run = [&](uint64_t seed, int index, bool crowded) {
    SamplerOptions options;
    options.params = params;
    options.seed = seed;
    options.index = index;
    options.vocab_size = 500;
    Sampler sampler = Sampler::Create(options, {}).value();
    Sampler other = MakeSampler({}, 500, 77);
    SamplingScratch scratch;
    std::vector<int32_t> output;
    for (int step = 0; step < 50; ++step) {
      if (crowded) {
        std::vector<float> logits = RandomLogits(500, 9999 + step);
        (void)other.Sample(absl::MakeSpan(logits), &scratch);
      }
      std::vector<float> logits = RandomLogits(500, step, 1);
      output.push_back(sampler.Sample(absl::MakeSpan(logits), &scratch)->token_id);
    }
    return output;
  };
  EXPECT_EQ(run(5, 0, false), run(5, 0, true));
  EXPECT_NE(run(5, 0, false), run(6, 0, false));
  EXPECT_NE(run(5, 0, false), run(5, 1, false));
}

TEST(SamplerTest, LogprobsAreTheModelsOwn) {
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 5;
  params.repetition_penalty = 2;
  params.logit_bias = {{1, 4.0f}};
  const std::vector<float> logits = RandomLogits(777, 12);
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  SamplingScratch scratch;
  for (int seed = 0; seed < 30; ++seed) {
    Sampler sampler = MakeSampler(params, 777, seed, {1, 2}, {}, 4);
    std::vector<float> row = logits;
    const SampledToken sampled = *sampler.Sample(absl::MakeSpan(row), &scratch);
    ASSERT_TRUE(sampled.chosen.has_value());
    EXPECT_EQ(sampled.chosen->token_id, sampled.token_id);
    EXPECT_NEAR(sampled.chosen->logprob, logits[sampled.token_id] - std::log(sum), 2e-6);
    const auto better = std::count_if(logits.begin(), logits.end(), [&](float logit) {
      return logit > logits[sampled.token_id];
    });
    EXPECT_EQ(sampled.chosen->rank, better + 1);
    ASSERT_EQ(sampled.top.size(), 4u);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(sampled.top[i].rank, i + 1);
      EXPECT_EQ(logits[sampled.top[i].token_id], sorted[i]);
      EXPECT_NEAR(sampled.top[i].logprob, sorted[i] - std::log(sum), 2e-6);
    }
  }
}

TEST(SamplerTest, TopLogprobsBoundedByTheVocabularyAndStableAmongEquals) {
  SamplingScratch scratch;
  Sampler sampler = MakeSampler({}, 3, 1, {}, {}, 10);
  std::vector<float> logits = {1, 1, 1};
  const SampledToken sampled = *sampler.Sample(absl::MakeSpan(logits), &scratch);
  ASSERT_EQ(sampled.top.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sampled.top[i].token_id, i);
  EXPECT_EQ(sampled.chosen->rank, 1);
}

TEST(SamplerTest, NoLogprobsUnlessAsked) {
  SamplingScratch scratch;
  Sampler sampler = MakeSampler({}, 3);
  std::vector<float> logits = {1, 1, 1};
  EXPECT_FALSE(sampler.Sample(absl::MakeSpan(logits), &scratch)->chosen.has_value());
  EXPECT_TRUE(scratch.raw_logits.empty());
}

TEST(SamplerTest, BrokenLogitsAreInternalErrorsAndChangeNothing) {
  SamplingScratch scratch;
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    for (int position : {0, 17, 600, 999}) {
      for (float bad : {std::nanf(""), kInfinity}) {
        Sampler sampler = MakeSampler(params, 1000);
        std::vector<float> logits = RandomLogits(1000, 3);
        logits[position] = bad;
        const auto result = sampler.Sample(absl::MakeSpan(logits), &scratch);
        EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
        EXPECT_THAT(std::string(result.status().message()),
                    HasSubstr("logits[" + std::to_string(position) + "]"));
        EXPECT_EQ(sampler.num_sampled(), 0);
      }
    }
    Sampler sampler = MakeSampler(params, 20);
    std::vector<float> logits(20, -kInfinity);
    EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits), &scratch).status().code(),
              absl::StatusCode::kInternal);
    std::vector<float> short_row(19, 0.0f);
    EXPECT_EQ(sampler.Sample(absl::MakeSpan(short_row), &scratch).status().code(),
              absl::StatusCode::kInternal);
  }
}

TEST(SamplerTest, MinusInfinityIsNeverDrawn) {
  SamplingParams params;
  params.temperature = 100;
  params.repetition_penalty = 0.5f;
  params.logit_bias = {{0, 100.0f}};
  ExpectDistribution(params, {-kInfinity, 1, 2, -kInfinity, 3}, {0, 3}, 3000);
}

TEST(SamplerTest, HugeLogitsStayFinite) {
  SamplingParams params;
  params.repetition_penalty = 1e-30f;
  params.logit_bias = {{1, 3e38f}};
  Sampler sampler = MakeSampler(params, 3, 1, {0});
  SamplingScratch scratch;
  std::vector<float> logits = {1e30f, 3e38f, -3e38f};
  const auto result = sampler.Sample(absl::MakeSpan(logits), &scratch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LE(result->token_id, 1);
}

TEST(SamplerTest, NoAllocationOnceTheScratchHasGrown) {
  SamplingParams params;
  params.top_k = 50;
  params.top_p = 0.9f;
  params.typical_p = 0.9f;
  Sampler sampler = MakeSampler(params, 4000, 1, {}, {}, 5);
  SamplingScratch scratch;
  std::vector<float> logits = RandomLogits(4000, 0);
  (void)sampler.Sample(absl::MakeSpan(logits), &scratch);
  const auto* candidates = scratch.candidates.data();
  const auto* raw = scratch.raw_logits.data();
  const TokenLogprob* top = nullptr;
  for (int step = 1; step < 50; ++step) {
    logits = RandomLogits(4000, step, 0.1f * step);
    const auto sampled = sampler.Sample(absl::MakeSpan(logits), &scratch);
    if (top == nullptr) top = sampled->top.data();
    EXPECT_EQ(sampled->top.data(), top);
  }
  EXPECT_EQ(scratch.candidates.data(), candidates);
  EXPECT_EQ(scratch.raw_logits.data(), raw);
}

TEST(SamplerTest, CreateNamesTheBadField) {
  struct Case {
    std::string field;
    void (*spoil)(SamplerOptions*);
  };
  const Case cases[] = {
      {"temperature", [](SamplerOptions* o) { o->params.temperature = -1; }},
      {"temperature", [](SamplerOptions* o) { o->params.temperature = std::nanf(""); }},
      {"temperature", [](SamplerOptions* o) { o->params.temperature = kInfinity; }},
      {"top_p", [](SamplerOptions* o) { o->params.top_p = 0; }},
      {"top_p", [](SamplerOptions* o) { o->params.top_p = 1.01f; }},
      {"typical_p", [](SamplerOptions* o) { o->params.typical_p = std::nanf(""); }},
      {"top_k", [](SamplerOptions* o) { o->params.top_k = -1; }},
      {"min_p", [](SamplerOptions* o) { o->params.min_p = 1.5f; }},
      {"repetition_penalty", [](SamplerOptions* o) { o->params.repetition_penalty = 0; }},
      {"presence_penalty", [](SamplerOptions* o) { o->params.presence_penalty = kInfinity; }},
      {"frequency_penalty", [](SamplerOptions* o) { o->params.frequency_penalty = std::nanf(""); }},
      {"logit_bias",
       [](SamplerOptions* o) {
         o->params.logit_bias = {{10, 1.0f}};
       }},
      {"logit_bias",
       [](SamplerOptions* o) {
         o->params.logit_bias = {{1, kInfinity}};
       }},
      {"stop.token_ids", [](SamplerOptions* o) { o->stop_token_ids = {-1}; }},
      {"vocab_size", [](SamplerOptions* o) { o->vocab_size = 0; }},
  };
  for (const Case& bad : cases) {
    SamplerOptions options;
    options.vocab_size = 10;
    bad.spoil(&options);
    const absl::Status status = Sampler::Create(options, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.field));
  }
  SamplerOptions options;
  options.vocab_size = 10;
  EXPECT_THAT(std::string(Sampler::Create(options, {3, 10}).status().message()),
              HasSubstr("prompt has token id 10, must be in [0, 10)"));
}

}  // namespace
}  // namespace tokenbutler
