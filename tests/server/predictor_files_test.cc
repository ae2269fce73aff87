#include "server/predictor_files.h"

#include <filesystem>
#include <string>

#include "engine/predictor/predictor_file.h"
#include "engine/weights/loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PredictorFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    model_path_ = std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-yarn";
    auto model = LoadModel(model_path_, {});
    ASSERT_TRUE(model.ok()) << model.status();
    config_ = model->config;
    path_ = testing::TempDir() + "/predictor_files_test.safetensors";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Predictor Fitting(PredictorKind kind) const {
    Predictor predictor = RandomPredictor(
        kind,
        FingerprintOf(config_, *Rope::Create(config_.rope, config_.head_dim, config_.max_position)),
        8, 1);
    predictor.model_sha256 = {*ModelDigest(model_path_)};
    return predictor;
  }
  absl::Status Load(const PredictorFiles& files) {
    options_ = {};
    return LoadPredictorFiles(files, model_path_, config_, &options_);
  }

  std::string model_path_, path_;
  ModelConfig config_;
  StepRunnerOptions options_;
};

TEST_F(PredictorFilesTest, NoneIsFineAndSaysSo) {
  EXPECT_TRUE(Load({}).ok());
  EXPECT_EQ(options_.predictor, nullptr);
  EXPECT_THAT(options_.no_predictor, HasSubstr("--predictor"));
}

TEST_F(PredictorFilesTest, FilesValidatedWithTheModelAreUsed) {
  ASSERT_TRUE(WritePredictor(path_, Fitting(PredictorKind::kLookahead)).ok());
  EXPECT_TRUE(Load({.predictor = path_}).ok());
  ASSERT_NE(options_.predictor, nullptr);
  EXPECT_EQ(options_.predictor->kind, PredictorKind::kLookahead);
  ASSERT_TRUE(WritePredictor(path_, Fitting(PredictorKind::kPca)).ok());
  EXPECT_TRUE(Load({.directions = path_}).ok());
  ASSERT_NE(options_.pca, nullptr);
}

TEST_F(PredictorFilesTest, OtherModelFilesNeedTheFlag) {
  Predictor predictor = Fitting(PredictorKind::kTokenButler);
  predictor.model_sha256 = {std::string(64, '0')};
  ASSERT_TRUE(WritePredictor(path_, predictor).ok());
  const absl::Status status = Load({.predictor = path_});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), StartsWith("--predictor: " + path_));
  EXPECT_THAT(std::string(status.message()), HasSubstr(*ModelDigest(model_path_)));
  EXPECT_TRUE(Load({.predictor = path_, .unchecked = true}).ok());
  EXPECT_NE(options_.predictor, nullptr);
}

TEST_F(PredictorFilesTest, WhatDoesNotFitIsRefused) {
  Predictor predictor = Fitting(PredictorKind::kLookahead);
  predictor.fingerprint.rms_norm_eps = 0.5f;
  ASSERT_TRUE(WritePredictor(path_, predictor).ok());
  EXPECT_THAT(std::string(Load({.predictor = path_, .unchecked = true}).message()),
              HasSubstr("rms_norm_eps is 0.5, the model's is"));
  ASSERT_TRUE(WritePredictor(path_, Fitting(PredictorKind::kPca)).ok());
  EXPECT_THAT(std::string(Load({.predictor = path_}).message()),
              HasSubstr("kind is \"pca\", must be tokenbutler or lookahead"));
  ASSERT_TRUE(WritePredictor(path_, Fitting(PredictorKind::kLookahead)).ok());
  EXPECT_THAT(std::string(Load({.directions = path_}).message()), StartsWith("--pca-file: "));
  std::filesystem::remove(path_);
  EXPECT_EQ(Load({.predictor = path_}).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tokenbutler
