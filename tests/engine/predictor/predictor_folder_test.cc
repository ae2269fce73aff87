#include "engine/predictor/predictor_folder.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/predictor/predictor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kModel(64, 'a');
const std::string kOther(64, 'b');

ModelFingerprint TinyModel() {
  ModelFingerprint model;
  model.architecture = "llama";
  model.num_layers = 3;
  model.hidden_size = 8;
  model.intermediate_size = 16;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  model.rope_inverse_frequencies = {1, 0.01f};
  return model;
}

class PredictorFolderTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, PredictorKind kind, const std::string& digest,
                    const ModelFingerprint& model = TinyModel()) {
    Predictor predictor = RandomPredictor(kind, model, 4, 1);
    predictor.model_sha256 = {digest};
    const std::string path = folder_.path() / name;
    EXPECT_TRUE(WritePredictor(path, predictor).ok());
    return path;
  }
  absl::StatusOr<FoundPredictor> Find(PredictorSearch search = {}) {
    if (search.folder.empty()) search.folder = folder_.path();
    return FindPredictor(search, TinyModel(), [this]() -> absl::StatusOr<std::string> {
      ++digests_;
      return kModel;
    });
  }

  TemporaryFolder folder_;
  int digests_ = 0;
};

TEST_F(PredictorFolderTest, TheBestKindThatKnowsTheModelIsFirst) {
  Write("a.safetensors", PredictorKind::kLookahead, kOther);
  const std::string mlp = Write("b.safetensors", PredictorKind::kTokenButler, kModel);
  const std::string second = Write("d.safetensors", PredictorKind::kLookahead, kModel);
  const std::string first = Write("c.safetensors", PredictorKind::kLookahead, kModel);
  Write("e.safetensors", PredictorKind::kPca, kModel);
  auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, first);
  EXPECT_TRUE(found->knows_model);
  EXPECT_THAT(found->others, ElementsAre(second, mlp));
  EXPECT_EQ(found->predictor.kind, PredictorKind::kLookahead);
  found = Find({.kind = PredictorKind::kTokenButler});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, mlp);
  EXPECT_THAT(found->others, ElementsAre());
}

TEST_F(PredictorFolderTest, StrangersServeOnlyUncheckedAndLast) {
  const std::string stranger = Write("a.safetensors", PredictorKind::kLookahead, kOther);
  const auto none = Find();
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("1 predictor(s)"));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr(kModel));
  auto found = Find({.unchecked = true});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, stranger);
  EXPECT_FALSE(found->knows_model);
  const std::string mlp = Write("b.safetensors", PredictorKind::kTokenButler, kModel);
  found = Find({.unchecked = true});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, mlp);
  EXPECT_THAT(found->others, ElementsAre(stranger));
}

TEST_F(PredictorFolderTest, TheModelIsReadOnlyWhenAFileIsOfItsArchitecture) {
  ModelFingerprint other = TinyModel();
  other.num_layers = 4;
  Write("a.safetensors", PredictorKind::kLookahead, kModel, other);
  Write("b.safetensors", PredictorKind::kPca, kModel);
  const auto none = Find();
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("none of the 2 files"));
  EXPECT_EQ(digests_, 0);
  Write("c.safetensors", PredictorKind::kLookahead, kOther);
  Write("d.safetensors", PredictorKind::kLookahead, kModel);
  EXPECT_TRUE(Find().ok());
  EXPECT_EQ(digests_, 1);
}

TEST_F(PredictorFolderTest, DamagedFilesArePassedOver) {
  std::ofstream(folder_.path() / "a.safetensors") << "no predictor";
  std::ofstream(folder_.path() / "card.md") << "a card";
  EXPECT_THAT(std::string(Find().status().message()), HasSubstr("none of the 1 files"));
  const std::string path = Write("b.safetensors", PredictorKind::kLookahead, kModel);
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, path);
}

TEST_F(PredictorFolderTest, AMissingFolderAndAnUnreadableModelAreErrors) {
  EXPECT_EQ(Find({.folder = "/nowhere"}).status().code(), absl::StatusCode::kNotFound);
  Write("a.safetensors", PredictorKind::kLookahead, kModel);
  const auto broken =
      FindPredictor({.folder = folder_.path()}, TinyModel(),
                    []() -> absl::StatusOr<std::string> { return UnavailableError("no disk"); });
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PredictorFolderTest, AProgramWithoutAFolderSaysSo) {
  const auto found = FindPredictor({}, TinyModel(), []() -> absl::StatusOr<std::string> {
    ADD_FAILURE() << "nothing to compare with";
    return kModel;
  });
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(found.status().message()),
              testing::HasSubstr("no folder share/tokenbutler/predictors beside this program"));
}

TEST_F(PredictorFolderTest, ProgramsFindTheFolderOfABuildAndOfAnInstallation) {
  const std::filesystem::path root = folder_.path();
  EXPECT_EQ(PredictorFolderOf(root / "bin/program"), "");
  const std::filesystem::path predictors = root / "share/tokenbutler/predictors";
  std::filesystem::create_directories(predictors);
  EXPECT_EQ(PredictorFolderOf(root / "bin/program"), predictors);
  EXPECT_EQ(PredictorFolderOf(root / "server/program"), predictors);
  EXPECT_EQ(PredictorFolderOf(root / "tools/train/program"), predictors);
  EXPECT_EQ(PredictorFolderOf(root / "too/far/below/program"), "");
}

}  // namespace
}  // namespace tokenbutler
