#include "tools/eval/kl.h"

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/server/tiny_predictor_file.h"
#include "tests/tools/eval/tiny_evaluation.h"

namespace tokenbutler {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;
using Json = nlohmann::ordered_json;

class KlTest : public TinyEvaluation {
 protected:
  KlOptions Options() const {
    KlOptions options;
    options.eval = TinyEvaluation::Options(480);
    options.texts = {texts()};
    options.scored_tokens = 24;
    return options;
  }

  // The result as its file has it.
  Json Run(const KlOptions& options) {
    absl::StatusOr<Report> report = RunKl(options, pool_);
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) return {};
    const std::string path = (folder_.path() / "result.json").string();
    EXPECT_TRUE(report->WriteJson(path).ok());
    std::ifstream in(path);
    return Json::parse(in);
  }

  static Json Row(const Json& result, const std::string& setting, int token_budget) {
    for (const Json& row : result["rows"]) {
      if (row["setting"] == setting && row["token_budget"] == token_budget) return row;
    }
    ADD_FAILURE() << "no row of " << setting << " at " << token_budget;
    return {};
  }

  size_t NumLines() const {
    std::ifstream in(folder_.path() / "rows.jsonl");
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  }
};

// Ranges around what was measured when this was written: a change of the attention, of a policy or
// of the arithmetic shows here. A model with random weights attends to everything a little, so that
// no selection comes near dense attention.
TEST_F(KlTest, TheNumbersAreThoseOfBefore) {
  KlOptions options = Options();
  options.eval.choice.settings = {"exact",
                                  "sketch",
                                  "sketch:keys=bits4",
                                  "sketch:keys=bits1",
                                  "pca",
                                  "quest",
                                  "sketch:interval=4",
                                  "snapkv",
                                  "h2o",
                                  "streaming_llm",
                                  "xkv",
                                  "random"};
  options.eval.probe_rate = 2;
  const Json result = Run(options);
  EXPECT_EQ(result["version"], TOKENBUTLER_VERSION);
  EXPECT_EQ(result["model"], "model");
  struct Expected {
    const char* setting;
    double least, most;  // mean KL
  };
  for (const Expected& e : std::vector<Expected>{{"exact", 0.02, 0.045},
                                                 {"sketch", 0.055, 0.11},
                                                 {"sketch:keys=bits4", 0.045, 0.095},
                                                 {"sketch:keys=bits1", 0.14, 0.28},
                                                 {"pca", 0.05, 0.1},
                                                 {"quest", 0, 0},  // both layers are dense
                                                 {"sketch:interval=4", 0.4, 0.8},
                                                 {"snapkv", 0.37, 0.72},
                                                 {"h2o", 0.3, 0.63},
                                                 {"streaming_llm", 0.7, 1.3},
                                                 {"xkv", 0.62, 1.2},
                                                 {"random", 0.39, 0.76}}) {
    const Json row = Row(result, e.setting, 160);
    EXPECT_THAT(row["mean_kl"].get<double>(), AllOf(Ge(e.least), Le(e.most))) << e.setting;
    EXPECT_LE(row["kl_low"], row["mean_kl"]);
    EXPECT_GE(row["kl_high"], row["mean_kl"]);
    EXPECT_EQ(row["documents"], 3);
  }
  EXPECT_LT(Row(result, "exact", 160)["mean_kl"], Row(result, "sketch", 160)["mean_kl"]);
  EXPECT_LT(Row(result, "sketch", 160)["mean_kl"], Row(result, "random", 160)["mean_kl"]);
  EXPECT_EQ(Row(result, "random", 160)["vs_exact"], "worse");
  EXPECT_NEAR(Row(result, "exact", 160)["mass_recall"].get<double>(), 0.918, 0.03);
  EXPECT_NEAR(Row(result, "random", 160)["mass_recall"].get<double>(), 0.358, 0.06);
  EXPECT_NEAR(Row(result, "exact", 160)["same_top"].get<double>(), 0.75, 0.15);
}

TEST_F(KlTest, ABudgetForEverythingIsDense) {
  KlOptions options = Options();
  options.eval.budgets = {"480"};
  options.max_texts = 1;
  const Json result = Run(options);
  for (const char* setting : {"exact", "sketch", "random"}) {
    const Json row = Row(result, setting, 480);
    EXPECT_EQ(row["mean_kl"], 0) << setting;
    EXPECT_EQ(row["same_top"], 1) << setting;
    EXPECT_EQ(row["vs_dense"], "tie") << setting;
    EXPECT_TRUE(row["mass_recall"].is_null()) << setting;
  }
}

TEST_F(KlTest, ARunThatIsStartedAgainAddsWhatIsNew) {
  KlOptions options = Options();
  options.max_texts = 2;
  const Json first = Run(options);
  EXPECT_EQ(NumLines(), 1 + 2 * 3);
  // One row lost, one setting and one budget more.
  {
    std::vector<std::string> lines;
    std::ifstream in(folder_.path() / "rows.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    lines.resize(lines.size() - 1);
    std::ofstream out(folder_.path() / "rows.jsonl");
    for (const std::string& line : lines) out << line << '\n';
    out << "{\"document\": \"half a l";
  }
  options.eval.choice.settings.emplace_back("quest");
  options.eval.budgets = {"160", "1/2"};
  const Json second = Run(options);
  EXPECT_EQ(NumLines(), 1 + 2 * 4 * 2);
  for (const char* setting : {"exact", "sketch", "random"}) {
    EXPECT_EQ(Row(second, setting, 160), Row(first, setting, 160)) << setting;
    EXPECT_LT(Row(second, setting, 240)["mean_kl"], Row(second, setting, 160)["mean_kl"])
        << setting;
  }
  options.scored_tokens = 25;
  const absl::Status refused = RunKl(options, pool_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(KlTest, WhatIsCachedIsNotPrefilledAndChangesNothing) {
  KlOptions options = Options();
  options.max_texts = 1;
  options.eval.choice.resume.clear();
  options.eval.prefill_cache = (folder_.path() / "cache").string();
  const Json first = Run(options);
  ASSERT_FALSE(std::filesystem::is_empty(options.eval.prefill_cache));
  EXPECT_EQ(Run(options)["rows"], first["rows"]);
}

TEST_F(KlTest, TheDeviceTierIsCountedAndChangesNothing) {
  KlOptions options = Options();
  options.eval.choice.resume.clear();
  options.max_texts = 1;
  const Json staged = Run(options);
  options.eval.has_device_tier = false;
  const Json direct = Run(options);
  for (const char* setting : {"exact", "sketch", "random"}) {
    EXPECT_EQ(Row(staged, setting, 160)["mean_kl"], Row(direct, setting, 160)["mean_kl"]);
    EXPECT_GT(Row(staged, setting, 160)["moved_bytes"], 0);
    EXPECT_TRUE(Row(direct, setting, 160)["moved_bytes"].is_null());
    EXPECT_EQ(Row(staged, setting, 160)["read_bytes"], Row(direct, setting, 160)["read_bytes"]);
  }
}

TEST_F(KlTest, ACacheOfAnotherTypeIsComparedWithOneOfTheComputeType) {
  KlOptions options = Options();
  options.eval.kv_dtype = "int8";
  options.max_texts = 1;
  const Json result = Run(options);
  const double dense = Row(result, "dense", 0)["mean_kl"].get<double>();
  EXPECT_GT(dense, 0);
  EXPECT_LT(dense, Row(result, "exact", 160)["mean_kl"].get<double>());
}

TEST_F(KlTest, ProbesSayWhatEachHeadDoes) {
  KlOptions options = Options();
  options.eval.probe_rate = 2;
  options.max_texts = 2;
  const Json result = Run(options);
  EXPECT_EQ(result["num_layers"], 2);
  EXPECT_EQ(result["num_kv_heads"], 2);
  for (const Json& heads : result["heads"]) {
    ASSERT_THAT(heads["mass"], SizeIs(4));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(heads["count"][i], 2 * 24);
      EXPECT_THAT(heads["mass"][i].get<double>(), AllOf(Ge(0.2), Le(1.0)));
      const double overlap = heads["overlap"][i].get<double>();
      if (heads["setting"] == "exact") {
        EXPECT_EQ(overlap, 1);
      }
      if (heads["setting"] == "random") {
        EXPECT_LT(overlap, 0.6);
      }
    }
  }
  EXPECT_EQ(Row(result, "exact", 160)["overlap"], 1);
  EXPECT_EQ(Row(result, "exact", 160)["vs_exact"], "tie");
}

TEST_F(KlTest, TextsThatAreTooShortAreLeftOut) {
  KlOptions options = Options();
  folder_.Write("texts/0a.txt", "short");
  options.max_texts = 2;
  const Json result = Run(options);
  EXPECT_EQ(result["texts_too_short"], 1);
  EXPECT_EQ(Row(result, "exact", 160)["documents"], 2);
  options.texts = {(folder_.path() / "texts/0a.txt").string()};
  EXPECT_THAT(std::string(RunKl(options, pool_).status().message()),
              HasSubstr("none of 1 texts has 481 tokens"));
}

TEST_F(KlTest, EmptyTextsAndCopiesAreLeftOut) {
  KlOptions options = Options();
  folder_.Write("texts/0a.txt", "");
  std::filesystem::copy_file(folder_.path() / "texts/0.txt", folder_.path() / "texts/copy.txt");
  const Json result = Run(options);
  EXPECT_EQ(result["texts_too_short"], 1);
  EXPECT_EQ(Row(result, "exact", 160)["documents"], 3);
}

TEST_F(KlTest, NothingThatCanBeRunIsAnError) {
  KlOptions options = Options();
  options.eval.choice.settings = {"tokenbutler"};
  EXPECT_THAT(std::string(RunKl(options, pool_).status().message()),
              HasSubstr("none of the settings can be run: tokenbutler"));
}

// Same name, same architecture, other weights.
TEST_F(KlTest, RowsOfAnotherModelAreNotTaken) {
  KlOptions options = Options();
  options.max_texts = 1;
  Run(options);
  const auto weights = folder_.path() / "model" / "model.safetensors";
  std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-4, std::ios::end)
      .write("\0\0\0\0", 4);
  EXPECT_EQ(RunKl(options, pool_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(KlTest, SlowPoliciesGetFewerTexts) {
  KlOptions options = Options();
  options.eval.choice.settings = {"exact", "snapkv"};
  options.slow_texts = 1;
  const Json result = Run(options);
  EXPECT_EQ(Row(result, "exact", 160)["documents"], 3);
  EXPECT_EQ(Row(result, "snapkv", 160)["documents"], 1);
}

TEST_F(KlTest, RowsRememberTheirPredictor) {
  KlOptions options = Options();
  options.eval.choice.settings = {"exact", "tokenbutler"};
  options.max_texts = 1;
  EXPECT_THAT(Run(options)["left_out"][0].get<std::string>(), HasSubstr("needs a predictor"))
      << "none of the source tree is for the tiny model";
  const std::string path = (folder_.path() / "ours.safetensors").string();
  std::vector<std::string> names;
  for (int units = 2; units < 4; ++units) {
    WriteTinyPredictor(path, model(), units);
    options.eval.choice.predictor = path;
    const Json row = Row(Run(options), "tokenbutler", 160);
    names.push_back(row["predictor"]);
    EXPECT_THAT(names.back(), ::testing::StartsWith("ours.safetensors@"));
    EXPECT_GT(row["mean_kl"], Row(Run(options), "exact", 160)["mean_kl"]);
    EXPECT_EQ(NumLines(), 1 + units) << "exact, and one of each predictor";
  }
  EXPECT_NE(names[0], names[1]);
}

TEST_F(KlTest, MistakesAreNamed) {
  KlOptions options = Options();
  options.eval.budgets = {"9/8"};
  EXPECT_THAT(std::string(RunKl(options, pool_).status().message()), HasSubstr("budget"));
  options.eval.budgets = {"481"};
  EXPECT_THAT(std::string(RunKl(options, pool_).status().message()),
              HasSubstr("budget is 481 tokens"));
  options = Options();
  options.scored_tokens = 480;
  EXPECT_THAT(std::string(RunKl(options, pool_).status().message()), HasSubstr("480"));
}

}  // namespace
}  // namespace tokenbutler
