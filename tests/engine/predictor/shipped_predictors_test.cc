// What lies in assets/predictors, which the server finds by itself.
#include <filesystem>
#include <string>

#include "engine/predictor/predictor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

TEST(ShippedPredictorsTest, EachIsReadKnowsItsModelAndHasACard) {
  const fs::path folder = fs::path(TOKENBUTLER_TEST_DATA) / "../../assets/predictors";
  uintmax_t bytes = 0;
  int num_files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto predictor = ReadPredictor(entry.path());
    ASSERT_TRUE(predictor.ok()) << entry.path() << ": " << predictor.status();
    EXPECT_THAT(predictor->model_sha256, testing::Contains(testing::SizeIs(64))) << entry.path();
    fs::path card = entry.path();
    EXPECT_TRUE(fs::is_regular_file(card.replace_extension(".md"))) << card;
    bytes += entry.file_size();
    ++num_files;
  }
  EXPECT_GE(num_files, 3);
  EXPECT_LT(bytes, 12'000'000u);  // everybody who clones the repository has them
}

}  // namespace
}  // namespace tokenbutler
