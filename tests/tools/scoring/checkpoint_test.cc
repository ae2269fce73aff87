#include "tools/scoring/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using Json = Checkpoint::Json;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : path_(::testing::TempDir() + "checkpoint_test-" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl") {
    std::filesystem::remove(path_);
  }
  ~CheckpointTest() override { std::filesystem::remove(path_); }

  const std::string path_;
  const Json facts_ = {{"model", "tiny"}};
};

TEST_F(CheckpointTest, ARunThatIsStartedAgainFindsItsRows) {
  {
    auto first = Checkpoint::Open(path_, facts_);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->Find({{"depth", 1}}), nullptr);
    ASSERT_TRUE(first->Add({{"depth", 1}, {"setting", "a"}, {"ms", 0.5}}).ok());
    ASSERT_TRUE(first->Add({{"depth", 2}, {"setting", "a"}, {"ms", 1.5}}).ok());
  }
  // The third row was cut off in the middle.
  std::ofstream(path_, std::ios::app) << R"({"depth": 3, "set)";
  auto second = Checkpoint::Open(path_, facts_);
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(second->rows().size(), 2u);
  const Json* row = second->Find({{"setting", "a"}, {"depth", 2}});
  ASSERT_NE(row, nullptr);
  EXPECT_EQ((*row)["ms"], 1.5);
  EXPECT_EQ(second->Find({{"setting", "a"}, {"depth", 3}}), nullptr);
  EXPECT_EQ(second->Find({{"colour", "red"}}), nullptr);
  // And the next one does not land behind the half line.
  ASSERT_TRUE(second->Add({{"depth", 3}}).ok());
  second = absl::UnknownError("closed");
  EXPECT_EQ(Checkpoint::Open(path_, facts_)->rows().size(), 3u);
}

TEST_F(CheckpointTest, RowsOfAnotherRunAreRefused) {
  ASSERT_TRUE(Checkpoint::Open(path_, facts_).ok());
  const auto other = Checkpoint::Open(path_, {{"model", "small"}});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("small"));
}

// Whatever is in a file that is no such file stays in it.
TEST_F(CheckpointTest, OtherFilesAreRefusedAndLeftAsTheyAre) {
  const std::pair<std::string, std::string> cases[] = {{"not JSON\n", "line 1"},
                                                       {"my notes", "something else than results"},
                                                       {R"({"model":"tiny"})"
                                                        "\n"
                                                        R"({"depth":1})"
                                                        "\n3\n"
                                                        R"({"depth":2})"
                                                        "\n",
                                                        "line 3"}};
  for (const auto& [text, words] : cases) {
    std::ofstream(path_) << text;
    const absl::Status status = Checkpoint::Open(path_, facts_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    std::ifstream in(path_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
  }
  EXPECT_THAT(std::string(Checkpoint::Open("/dev/null", facts_).status().message()),
              HasSubstr("no regular file"));
  EXPECT_EQ(Checkpoint::Open(::testing::TempDir(), facts_).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(CheckpointTest, ACutOffFirstLineIsWrittenAgain) {
  std::ofstream(path_) << R"({"mod)";
  ASSERT_TRUE(Checkpoint::Open(path_, facts_).ok());
  std::ifstream in(path_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "{\"model\":\"tiny\"}\n");
}

TEST_F(CheckpointTest, AFileBelongsToOneRun) {
  auto first = Checkpoint::Open(path_, facts_);
  ASSERT_TRUE(first.ok());
  const auto second = Checkpoint::Open(path_, facts_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("used by another run"));
  first = absl::UnknownError("closed");
  EXPECT_TRUE(Checkpoint::Open(path_, facts_).ok());
}

TEST_F(CheckpointTest, NamesThatAreNoUtf8CanBeWritten) {
  auto checkpoint = Checkpoint::Open(path_, facts_);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_TRUE(checkpoint->Add({{"document", "\xff.txt"}}).ok());
}

TEST_F(CheckpointTest, WithoutAFileItOnlyRemembers) {
  auto checkpoint = Checkpoint::Open("", facts_);
  ASSERT_TRUE(checkpoint.ok());
  ASSERT_TRUE(checkpoint->Add({{"depth", 1}}).ok());
  EXPECT_NE(checkpoint->Find({{"depth", 1}}), nullptr);
}

TEST_F(CheckpointTest, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_EQ(Checkpoint::Open("/nonexistent/rows.jsonl", facts_).status().code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace tokenbutler
