#include "server/predictor_files.h"

#include <filesystem>
#include <string>

#include "engine/predictor/predictor_file.h"
#include "engine/weights/loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/testing/temporary_folder.h"

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
    auto in_use = LoadPredictorFiles(files, model_path_, config_, &options_);
    in_use_ = in_use.value_or(PredictorInUse());
    return in_use.status();
  }

  std::string model_path_, path_;
  ModelConfig config_;
  StepRunnerOptions options_;
  PredictorInUse in_use_;
};

TEST_F(PredictorFilesTest, NoneIsFineAndSaysSo) {
  EXPECT_TRUE(Load({}).ok());
  EXPECT_EQ(options_.predictor, nullptr);
  EXPECT_THAT(options_.no_predictor, HasSubstr("--predictor"));
  EXPECT_EQ(in_use_.path, "");
  EXPECT_EQ(in_use_.reason, options_.no_predictor);
}

TEST_F(PredictorFilesTest, OneIsFoundInAFolderByTheDigestOfTheModel) {
  TemporaryFolder folder;
  const std::string first = folder.path() / "a.safetensors",
                    second = folder.path() / "b.safetensors";
  PredictorFiles files = {.folder = folder.path()};
  ASSERT_TRUE(Load(files).ok());
  EXPECT_EQ(options_.predictor, nullptr);
  EXPECT_THAT(options_.no_predictor, HasSubstr("none of the 0 files in " + files.folder));

  Predictor stranger = Fitting(PredictorKind::kLookahead);
  stranger.model_sha256 = {std::string(64, '0')};
  ASSERT_TRUE(WritePredictor(first, stranger).ok());
  ASSERT_TRUE(Load(files).ok());
  EXPECT_EQ(options_.predictor, nullptr);
  EXPECT_THAT(in_use_.reason, HasSubstr(*ModelDigest(model_path_)));

  ASSERT_TRUE(WritePredictor(second, Fitting(PredictorKind::kTokenButler)).ok());
  ASSERT_TRUE(Load(files).ok());
  ASSERT_NE(options_.predictor, nullptr);
  EXPECT_EQ(in_use_.path, second);
  EXPECT_EQ(in_use_.kind, "tokenbutler");
  EXPECT_THAT(in_use_.reason, HasSubstr("found by the digest"));

  // A named file goes before what is found, and a wanted kind may not be there.
  ASSERT_TRUE(Load({.predictor = first, .unchecked = true, .folder = files.folder}).ok());
  EXPECT_EQ(in_use_.path, first);
  files.kind = PredictorKind::kLookahead;
  ASSERT_TRUE(Load(files).ok());
  EXPECT_EQ(in_use_.path, "");
  files.unchecked = true;
  ASSERT_TRUE(Load(files).ok());
  EXPECT_EQ(in_use_.path, first);
  EXPECT_THAT(in_use_.reason, HasSubstr("does not know the model's files"));
}

TEST_F(PredictorFilesTest, AFolderThatIsNamedMustBeThere) {
  const absl::Status status = Load({.folder = "/nowhere"});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), StartsWith("--predictor-dir: /nowhere"));
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
