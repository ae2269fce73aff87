#include "tools/train/training_checkpoint.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/train/training_fixture.h"
#include "tools/train/durable_file.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class TrainingCheckpointTest : public testing::Test {
 protected:
  TrainingCheckpointTest() {
    checkpoint_.step = 30;
    checkpoint_.seconds = 12.5;
    checkpoint_.log_bytes = 1000;
    checkpoint_.best_step = 20;
    checkpoint_.first_loss = 2.25f;
    checkpoint_.best_loss = 0.1f;
    checkpoint_.values = {1, 2, 1e-38f};
    checkpoint_.best_values = {3, -0.0f, 5};
    checkpoint_.first_moment = {6, 7, 8};
    checkpoint_.second_moment = {9, 10, 11};
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.path() / "checkpoint";
  const Json identity_ = {{"seed", 1}, {"kind", "lookahead"}};
  TrainingCheckpoint checkpoint_;
};

TEST_F(TrainingCheckpointTest, ComesBackAsItWas) {
  ASSERT_TRUE(checkpoint_.Write(path_, identity_).ok());
  const auto back = *TrainingCheckpoint::Read(path_, identity_);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->step, 30);
  EXPECT_EQ(back->seconds, 12.5);
  EXPECT_EQ(back->log_bytes, 1000u);
  EXPECT_FALSE(back->is_finished);
  EXPECT_EQ(back->best_step, 20);
  EXPECT_EQ(back->first_loss, 2.25f);
  EXPECT_EQ(back->best_loss, 0.1f);
  EXPECT_EQ(back->values, checkpoint_.values);
  EXPECT_EQ(back->best_values, checkpoint_.best_values);
  EXPECT_EQ(back->first_moment, checkpoint_.first_moment);
  EXPECT_EQ(back->second_moment, checkpoint_.second_moment);
}

TEST_F(TrainingCheckpointTest, NoFileIsNoCheckpoint) {
  EXPECT_FALSE(TrainingCheckpoint::Read(path_, identity_)->has_value());
}

TEST_F(TrainingCheckpointTest, AnotherRunsIsRefused) {
  ASSERT_TRUE(checkpoint_.Write(path_, identity_).ok());
  const absl::Status status =
      TrainingCheckpoint::Read(path_, {{"seed", 2}, {"kind", "lookahead"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of a run with seed 1, this one has 2"));
}

// A bit anywhere.
TEST_F(TrainingCheckpointTest, DamageIsFound) {
  ASSERT_TRUE(checkpoint_.Write(path_, identity_).ok());
  const std::string bytes = ReadFile(path_);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    folder_.Write("damaged", damaged);
    EXPECT_EQ(TrainingCheckpoint::Read(folder_.path() / "damaged", identity_).status().code(),
              at < 42 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDataLoss)
        << at;
  }
  for (const size_t size : {size_t{0}, size_t{10}, size_t{50}, bytes.size() - 1}) {
    folder_.Write("damaged", bytes.substr(0, size));
    EXPECT_FALSE(TrainingCheckpoint::Read(folder_.path() / "damaged", identity_).ok()) << size;
  }
}

// A limit on the sizes of files stands for a full disk.
TEST_F(TrainingCheckpointTest, AFullDiskLeavesTheOldOne) {
  ASSERT_TRUE(checkpoint_.Write(path_, identity_).ok());
  const std::string before = ReadFile(path_);
  checkpoint_.values.resize(100000);
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 10000, .rlim_max = old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = checkpoint_.Write(path_, identity_);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint cannot be written"));
  EXPECT_EQ(ReadFile(path_), before);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".unfinished"));
}

TEST_F(TrainingCheckpointTest, AFolderThatIsNotThereIsNamed) {
  const absl::Status status = WriteFileDurably(folder_.path() / "no" / "file", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace tokenbutler
